// The content of a file of vectors: cases of a quantizer, their scales, and one result per
// rounding.
#include <halftone/lab/commands/commands.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iostream>
#include <mutex>
#include <sstream>

#include <nlohmann/json.hpp>

#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/core/files.h>
#include <halftone/core/formats/quantizer.h>
#include <halftone/core/named_tensors.h>
#include <halftone/core/random.h>

namespace halftone::lab {

namespace {

constexpr uint64_t words_seed = 7;

Tensor words_for(const Tensor& x) {
  Tensor words = empty(x.shape(), i32);
  for (int64_t i = 0; i < x.numel(); ++i) {
    const uint32_t word = Philox::words(words_seed, uint64_t(i) / 4)[std::size_t(i % 4)];
    words.data<int32_t>()[i] = std::bit_cast<int32_t>(word);
  }
  return words;
}

/// The largest magnitude of some elements, as bits; NaN is above all.
float largest_of(const Tensor& x, int64_t from_row, int64_t to_row, int64_t from, int64_t to) {
  uint32_t most = 0;
  for (int64_t row = from_row; row < to_row; ++row)
    for (int64_t column = from; column < to; ++column)
      most = std::max(most, magnitude_bits(x.data<float>()[row * x.shape()[1] + column]));
  return std::bit_cast<float>(most > 0x7f800000u ? nan_magnitude : most);
}

/// The scales of a matrix: a number on the grid times that of its sub-block (a power of two) times
/// that of its block, then times the tensor's.
struct Scales {
  Tensor inner{}, block{}, tensor{};
};

/// Computes scales, and checks with them that `expected` are the results. A difference is an error
/// of this command.
class CaseScales {
 public:
  CaseScales(const Quantizer& quantizer, const Tensor& x)
      : n_(numbers_of(quantizer)), x_(x), rows_(x.shape()[0]), columns_(x.shape()[1]) {
    const float amax = largest_of(x, 0, rows_, 0, columns_);
    if (n_.per == Scaling::Per::tensor) {
      whole_ = scale_per_tensor(scale_of_tensor(n_, amax));
      scales_.tensor = scalar(whole_.out);
      return;
    }
    if (n_.per != Scaling::Per::block) return;
    const int64_t up = (rows_ + n_.rows - 1) / n_.rows,
                  along = (columns_ + n_.columns - 1) / n_.columns;
    scales_.block = empty({up, along});
    if (n_.tensor_level) scales_.tensor = scalar(1 / tensor_level_of(n_, amax));
    for (int64_t r = 0; r < up; ++r)
      for (int64_t c = 0; c < along; ++c) {
        const float most = largest_of(x, r * n_.rows, std::min(rows_, (r + 1) * n_.rows),
                                      c * n_.columns, std::min(columns_, (c + 1) * n_.columns));
        blocks_.push_back(scale_of_block(n_, most, amax));
        scales_.block.data<float>()[r * along + c] = blocks_.back().out;
        if (n_.inner_levels > 0) add_inner(r * n_.rows, c * n_.columns, most);
      }
  }

  const Scales& scales() const { return scales_; }
  void check(const Tensor& words, Rounding rounding, const Tensor& expected,
             Quantizer quantizer) const {
    quantizer.rounding = rounding;
    const QuantizeNumbers n = numbers_of(quantizer);
    const int64_t along = (columns_ + n.columns - 1) / n.columns;
    for (int64_t i = 0; i < x_.numel(); ++i) {
      const int64_t row = i / columns_, column = i % columns_;
      Scale scale = blocks_.empty()
                        ? whole_
                        : blocks_[std::size_t(row / n.rows * along + column / n.columns)];
      if (scales_.inner.defined()) {
        const int64_t size = n.inner_columns[n.inner_levels - 1],
                      across = (columns_ + size - 1) / size;
        scale = times_power(n, scale,
                            std::ilogb(scales_.inner.data<float>()[row * across + column / size]));
      }
      const float y = quantize_element(n, scale, x_.data<float>()[i],
                                       std::bit_cast<uint32_t>(words.data<int32_t>()[i]));
      if (std::bit_cast<uint32_t>(y) != std::bit_cast<uint32_t>(expected.data<float>()[i]))
        fail<Error>(vectors_op, described(quantizer), ", element ", i, ": the kernel gives ",
                    expected.data<float>()[i], ", the written scales give ", y,
                    ". This is an error of halftone. Report it.");
    }
  }

 private:
  /// Adds the scales of the sub-blocks of the last block. most: its largest magnitude.
  void add_inner(int64_t top, int64_t left, float most) {
    const int64_t size = n_.inner_columns[n_.inner_levels - 1],
                  across = (columns_ + size - 1) / size;
    if (!scales_.inner.defined()) scales_.inner = empty({rows_, across});
    const Scale& block = blocks_.back();
    for (int64_t r = top; r < std::min(rows_, top + n_.rows); ++r)
      each_inner(
          n_, block, std::min<int64_t>(n_.columns, columns_ - left), most,
          [&](int64_t at, int64_t count) {
            return largest_of(x_, r, r + 1, left + at, left + at + count);
          },
          [&](const Scale& own, int64_t at, int64_t) {
            scales_.inner.data<float>()[r * across + (left + at) / size] = own.out / block.out;
          });
  }

  QuantizeNumbers n_;
  Tensor x_;
  int64_t rows_, columns_;
  Scale whole_{};
  std::vector<Scale> blocks_{};
  Scales scales_{};
};

/// Matrices whose blocks have random numbers of different sizes, ties, and special numbers.
class Cases {
 public:
  Cases(const Quantizer& quantizer, int64_t count) : grid_(quantizer.grid) {
    const Scaling& scaling = quantizer.scaling;
    block_ = scaling.per == Scaling::Per::block ? scaling.columns : 32;
    columns_ = block_ * 5 / 2;  // the last block of a row is shorter
    rows_ = std::max<int64_t>(1, (count + columns_ - 1) / columns_);
    // Under a scale of the whole tensor small blocks become 0: fewer sizes then.
    sizes_ = scaling.per == Scaling::Per::tensor || scaling.tensor_level ? 13 : 41;
  }

  Tensor random() {
    return matrix([&](int64_t block, int64_t) {
      const int size = int((block * 13) % sizes_) - int(sizes_ / 2);
      return float(std::ldexp(fraction(), size - int(generator_.below(6))));
    });
  }
  /// Numbers of the grid and midpoints. Each block has the grid's largest number times a power of
  /// two.
  Tensor ties() {
    const int64_t numbers = count_of_numbers(grid_);
    return matrix([&](int64_t block, int64_t i) {
      const int64_t most = std::min<int64_t>(numbers - 1, int64_t(1) << 20);
      const int64_t at = numbers - 2 - int64_t(generator_.below(uint64_t(most)));
      const double low = number_at(grid_, std::max<int64_t>(at, 0)),
                   high = number_at(grid_, std::max<int64_t>(at, 0) + 1);
      const double magnitude = i == 0 ? double(grid_.max) : (i % 3 == 0 ? low : (low + high) / 2);
      return float(
          std::ldexp(generator_.below(2) == 0 ? magnitude : -magnitude, int(block % 5) - 2));
    });
  }
  /// Blocks of zeros, of subnormals, of the largest floats, with an infinity, and with a NaN.
  Tensor special() {
    constexpr float most = std::numeric_limits<float>::max();
    return matrix([&](int64_t block, int64_t i) {
      const double f = fraction();
      switch (block % 6) {
        case 0: return i % 2 == 0 ? 0.0f : -0.0f;
        case 1: return float(std::ldexp(f, -126));
        case 2: return i == 1 ? -most : float(f * double(most));
        case 3: return i == 2 ? std::numeric_limits<float>::infinity() : float(f * 8);
        case 4: return i == 3 ? std::bit_cast<float>(0x7fc00000u) : float(f * 8);
        default: return i == 0 ? 1.0f : float(f);  // the largest is a power of two
      }
    });
  }

 private:
  double fraction() { return double(generator_.next() >> 40) * 0x1p-23 - 1; }
  Tensor matrix(const auto& element) {
    Tensor x = empty({rows_, columns_});
    const int64_t along = (columns_ + block_ - 1) / block_;
    for (int64_t i = 0; i < x.numel(); ++i) {
      const int64_t column = i % columns_;
      x.data<float>()[i] = element(i / columns_ * along + column / block_, column % block_);
    }
    return x;
  }

  NumberFormat grid_;
  int64_t block_, rows_, columns_, sizes_;
  Generator generator_{12};
};

Vectors begun(const std::string& name, const Quantizer& quantizer,
              const std::vector<Rounding>& roundings) {
  const NumberFormat& grid = quantizer.grid;
  const Scaling& scaling = quantizer.scaling;
  const auto text = [](double number) {
    PlainText words;
    words.precision(9);
    words << number;
    return words.str();
  };
  std::string names;
  for (const Rounding r : roundings)
    names += (names.empty() ? "" : " ") + std::string(halftone::name(r));
  Vectors vectors;
  vectors.metadata = {{"halftone_vectors", "1"},
                      {"name", name},
                      {"what", described(quantizer)},
                      {"roundings", names},
                      {"grid.bits", text(grid.bits)},
                      {"grid.significand_bits", text(grid.significand_bits)},
                      {"grid.min_exponent", text(grid.min_exponent)},
                      {"grid.max", text(double(grid.max))},
                      {"grid.subnormals", grid.subnormals ? "true" : "false"},
                      {"grid.infinity", grid.infinity ? "true" : "false"},
                      {"scale.per", scaling.per == Scaling::Per::none     ? "none"
                                    : scaling.per == Scaling::Per::tensor ? "tensor"
                                                                          : "block"}};
  if (scaling.per == Scaling::Per::block) {
    vectors.metadata["scale.block"] =
        std::to_string(scaling.rows) + "x" + std::to_string(scaling.columns);
    vectors.metadata["scale.format"] = described(scaling.scale_format);
    vectors.metadata["scale.tensor_level"] = scaling.tensor_level ? "true" : "false";
    for (const auto& [key, level] : {std::pair("scale.inner", scaling.inner[0]),
                                     std::pair("scale.inner.inner", scaling.inner[1])})
      if (level.columns > 0)
        vectors.metadata[key] =
            "1x" + std::to_string(level.columns) + " e" + std::to_string(level.bits) + "m0";
    if (scaling.scale_format.significand_bits == 1)
      vectors.metadata["scale.rule"] = halftone::name(scaling.rule);
  }
  return vectors;
}

void add_case(Vectors& vectors, const std::string& prefix, const Tensor& x,
              const Quantizer& quantizer, const std::vector<Rounding>& roundings) {
  const Tensor words = words_for(x);
  vectors.tensors[prefix + "x"] = x;
  if (std::ranges::find(roundings, Rounding::stochastic) != roundings.end())
    vectors.tensors[prefix + "random"] = words;
  const CaseScales scales(quantizer,
                          x.rank() == 2 ? x : x.view_as({1, x.numel()}, {x.numel(), 1}, 0));
  if (scales.scales().block.defined()) vectors.tensors[prefix + "scale"] = scales.scales().block;
  if (scales.scales().inner.defined())
    vectors.tensors[prefix + "inner_scale"] = scales.scales().inner;
  if (scales.scales().tensor.defined())
    vectors.tensors[prefix + "tensor_scale"] = scales.scales().tensor;
  for (const Rounding rounding : roundings) {
    Quantizer with = quantizer;
    with.rounding = rounding;
    const Tensor y = quantized(x, {.quantizer = with, .key = {words_seed, 0}});
    scales.check(words, rounding, y, quantizer);
    vectors.tensors[prefix + std::string(name(rounding))] = y;
  }
}

std::string bits_text(const Tensor& x, int64_t i) {
  uint32_t bits = 0;
  std::memcpy(&bits, x.raw_data() + i * 4, 4);
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text;
  for (int shift = 28; shift >= 0; shift -= 4) text += digits[bits >> shift & 15u];
  return text;
}

}  // namespace

Vectors vectors_of(const std::string& name, const Quantizer& quantizer,
                   const std::vector<Rounding>& roundings, int64_t count) {
  check_quantizer(vectors_op, quantizer);
  if (count < 64 || count > (int64_t(1) << 24))
    fail<UsageError>(vectors_op, "--count is ", count, ". Choose 64 to 16777216.");
  Vectors vectors = begun(name, quantizer, roundings);
  if (quantizer.scaling.per == Scaling::Per::none) {
    add_case(vectors, "", from_vector(inputs_of(quantizer.grid, count), {count}), quantizer,
             roundings);
    return vectors;
  }
  Cases cases(quantizer, count);
  add_case(vectors, "random.", cases.random(), quantizer, roundings);
  add_case(vectors, "ties.", cases.ties(), quantizer, roundings);
  add_case(vectors, "special.", cases.special(), quantizer, roundings);
  return vectors;
}

std::string json_lines_of(const Vectors& vectors) {
  std::string lines = nlohmann::json(vectors.metadata).dump() + '\n';
  for (const auto& [name, x] : vectors.tensors) {
    if (name != "x" && !name.ends_with(".x")) continue;
    const std::string prefix = name.substr(0, name.size() - 1);
    const int64_t columns = x.shape()[x.rank() - 1];
    for (int64_t i = 0; i < x.numel(); ++i) {
      nlohmann::ordered_json line;
      if (!prefix.empty()) line["case"] = prefix.substr(0, prefix.size() - 1);
      line["row"] = i / columns, line["column"] = i % columns;
      for (const auto& [other, values] : vectors.tensors) {
        if (!other.starts_with(prefix) || (prefix.empty() && other.find('.') != other.npos))
          continue;
        if (values.numel() == x.numel() && values.shape() == x.shape())
          line[other.substr(prefix.size())] = bits_text(values, i);
        else if (values.numel() == 1) line[other.substr(prefix.size())] = bits_text(values, 0);
      }
      if (const auto scale = vectors.tensors.find(prefix + "scale");
          scale != vectors.tensors.end()) {
        const std::string& block = vectors.metadata.at("scale.block");
        const int64_t rows = std::stoll(block),
                      along = std::stoll(block.substr(block.find('x') + 1));
        const int64_t at = i / columns / rows * scale->second.shape()[1] + i % columns / along;
        line["scale"] = bits_text(scale->second, at);
      }
      lines += line.dump() + '\n';
    }
  }
  return lines;
}

// The flags of halftone-lab vectors, and its files.

namespace {

struct VectorsOptions {
  std::string format{}, quantizer{};  // at least one; both: the quantizer with that grid
  std::string rounding{};             // "": all
  std::string overflow = "infinity";  // for `exhaustive`
  int64_t count = 128;                // inputs of a format; of a quantizer: of each case, at least
  std::string output{};               // .safetensors or .jsonl; without a name: a folder
  bool exhaustive = false, table = false;
};

std::vector<Rounding> vectors_roundings(const VectorsOptions& options) {
  std::vector<Rounding> all;
  for (int i = 0; i < rounding_count; ++i) all.push_back(Rounding(i));
  if (options.rounding.empty()) return all;
  const auto one = named<Rounding>(options.rounding);
  if (one) return {*one};
  std::string known;
  for (const Rounding rounding : all)
    known += (known.empty() ? "" : ", ") + std::string(name(rounding));
  fail<UsageError>(vectors_op, "there is no rounding named ", quoted(options.rounding),
                   ". Known: ", known, ".");
}

Saturation vectors_saturation(const VectorsOptions& options) {
  if (const auto saturation = named<Saturation>(options.overflow)) return *saturation;
  fail<UsageError>(vectors_op, "--overflow is ", quoted(options.overflow),
                   ". Choose infinity, saturate or propagate.");
}

/// Prints the number of each code, as the value tables of P3109 have them.
void print_codes(const std::string& name) {
  const auto format = P3109Format::named(name);
  if (!format)
    fail<UsageError>(vectors_op, "--table is for formats of IEEE P3109, and ", quoted(name),
                     " is none. Name one, such as binary8p4se.");
  std::string lines = "codepoint,value\n";
  for (int code = 0; code < 1 << format->bits; ++code) {
    const P3109Format::Value value = format->value(code);
    PlainText line;
    line << "0x" << std::hex << code << ',' << (value.significand < 0 ? "-" : "");
    switch (value.kind) {
      case P3109Format::Value::Kind::nan: line << "NaN"; break;
      case P3109Format::Value::Kind::infinity: line << "Inf"; break;
      case P3109Format::Value::Kind::number:
        line << "0x" << std::abs(value.significand) << 'p' << std::dec << std::showpos
             << value.exponent;
    }
    lines += line.str() + '\n';
  }
  std::cout << lines;
}

NumberFormat vectors_format(const std::string& name) {
  if (const auto format = number_format_named(name)) return *format;
  std::string known;
  for (const NamedFormat& named : named_formats()) known += std::string(named.name) + ' ';
  fail<UsageError>(vectors_op, "there is no format named ", quoted(name), ". Known: ", known,
                   "and eXmY (2 <= X <= 8, 0 <= Y <= 23), intN (3 <= N <= 16), and IEEE P3109's ",
                   "whose exponents have up to 8 bits, such as binary8p4se.");
}

Quantizer vectors_quantizer(const VectorsOptions& options) {
  Quantizer quantizer;
  if (!options.quantizer.empty()) {
    const auto named = quantizer_named(options.quantizer);
    if (!named)
      fail<UsageError>(vectors_op, "there is no quantizer named ", quoted(options.quantizer),
                       ". Known: ", list_of(ready_made_quantizers()), ".");
    quantizer = *named;
  }
  if (!options.format.empty()) quantizer.grid = vectors_format(options.format);
  return quantizer;
}

void write_vectors(const std::filesystem::path& path, const Vectors& vectors) {
  if (path.extension() == ".safetensors") save_safetensors(path, vectors.tensors, vectors.metadata);
  else if (path.extension() == ".jsonl") files::replace(vectors_op, path, json_lines_of(vectors));
  else
    fail<UsageError>(vectors_op, "--out is ", quoted(path.string()),
                     ". Its name must end in .safetensors or .jsonl.");
  std::cout << "wrote " << printable(path.string()) << '\n';
}

/// Every named format, four of IEEE P3109, and every ready-made quantizer, a file for each.
void write_all_vectors(const VectorsOptions& options, const std::vector<Rounding>& roundings) {
  const std::filesystem::path folder(options.output);
  files::make_directories(vectors_op, folder);
  std::vector<std::string_view> names{"binary8p4se", "binary8p3sf", "binary6p3ue", "binary8p1uf"};
  for (const NamedFormat& named : named_formats()) names.push_back(named.name);
  for (const std::string_view format : names) {
    const std::string name(format);
    write_vectors(folder / (name + ".safetensors"),
                  vectors_of(name, {.grid = *number_format_named(name)}, roundings, options.count));
  }
  for (const std::string_view ready : ready_made_quantizers()) {
    const std::string name(ready);
    write_vectors(folder / (name + ".safetensors"),
                  vectors_of(name, *quantizer_named(name), roundings, options.count));
  }
}

int compare_with_search(const VectorsOptions& options, const std::vector<Rounding>& roundings) {
  if (!options.quantizer.empty())
    fail<UsageError>(vectors_op, "--exhaustive rounds without a scale. Leave out --quantizer.");
  const Exhaustive result =
      compare_all(vectors_format(options.format), roundings, vectors_saturation(options));
  std::cout << options.format << ": every f32, " << roundings.size()
            << " roundings: " << result.compared << " comparisons, " << result.different
            << " differ\n";
  if (result.different != 0) std::cout << "first: " << result.first << '\n';
  return result.different == 0 ? 0 : 1;
}

/// Writes the file or the files, or compares all floats. Returns the exit code: 1 if one differs.
int run_vectors(const VectorsOptions& options) {
  if (options.table) return print_codes(options.format), 0;
  const std::vector<Rounding> roundings = vectors_roundings(options);
  const bool all = options.format.empty() && options.quantizer.empty();
  if (options.exhaustive && !options.format.empty()) return compare_with_search(options, roundings);
  if (options.exhaustive)
    fail<UsageError>(vectors_op, "--exhaustive needs a format. Name one, such as e4m3.");
  if (options.output.empty())
    fail<UsageError>(vectors_op, "no file. Add --out NAME.safetensors or NAME.jsonl.");
  if (all) {
    write_all_vectors(options, roundings);
    return 0;
  }
  std::string name = options.quantizer.empty() ? options.format : options.quantizer;
  if (!options.quantizer.empty() && !options.format.empty()) name += " of " + options.format;
  write_vectors(options.output,
                vectors_of(name, vectors_quantizer(options), roundings, options.count));
  return 0;
}
}  // namespace

Work add_vectors(CLI::App& app, const Context&) {
  auto options = std::make_shared<VectorsOptions>();
  app.add_option("format", options->format,
                 "a format (e4m3, e5m6, int4, binary8p4se, ...); without it and --quantizer: all "
                 "named ones");
  app.add_option("--quantizer", options->quantizer,
                 list_of(ready_made_quantizers()) + "; with a format, that is its grid");
  app.add_option("--rounding", options->rounding,
                 "one of " + list_of(words_of<Rounding>) + "; default: all");
  app.add_option("--count", options->count,
                 "inputs; a quantizer has at least as many in each of its three cases")
      ->capture_default_str();
  app.add_option("--out", options->output,
                 "a file (.safetensors or .jsonl); a folder, if all are written");
  app.add_flag("--exhaustive", options->exhaustive,
               "round all 2^32 floats to a format of at most 8 bits and search each result in "
               "f64; exit code 1 if any differs");
  app.add_option("--overflow", options->overflow,
                 "with --exhaustive: " + list_of(words_of<Saturation>))
      ->capture_default_str();
  app.add_flag("--table", options->table, "print the number of each code of a P3109 format");
  return [options] { return run_vectors(*options); };
}

// Every float against a search over the grid. The search knows the numbers of the grid and the
// meaning of each rounding; it shares no code with round_finite() or the kernels. Its comparisons
// are exact: midpoints of a short grid are doubles, and so are the fractions that random words
// meet.

namespace {

constexpr uint64_t search_seed = 5, search_chunk = uint64_t(1) << 20;

/// The grid from 0 to max, and one number beyond it, which is where infinity or saturation begins.
std::vector<double> grid_and_one_more(const NumberFormat& format) {
  std::vector<double> numbers;
  for (int64_t i = 0; i <= count_of_numbers(format); ++i) numbers.push_back(number_at(format, i));
  return numbers;
}

/// Returns whether a magnitude between low and high becomes high. odd: whether low has an odd
/// significand, or, in IEEE P3109's formats, an odd code.
bool goes_up(Rounding rounding, double low, double x, double high, bool negative, bool odd,
             uint32_t word) {
  const double middle = (low + high) / 2;
  switch (rounding) {
    case Rounding::nearest_even: return x > middle || (x == middle && odd);
    case Rounding::nearest_away: return x >= middle;
    case Rounding::toward_zero: return false;
    case Rounding::up: return !negative && x > low;
    case Rounding::down: return negative && x > low;
    case Rounding::to_odd: return x > low && !odd;
    case Rounding::max_magnitude: return x > low;
    case Rounding::stochastic: break;
  }
  // Both have 31 bits if x has more: docs/number_formats.md.
  const double share = (x - low) / (high - low), cut = std::floor(share * 0x1p31) * 0x1p-31;
  const bool deep = share * 0x1p31 != std::floor(share * 0x1p31);
  return deep ? cut + double(word >> 1) * 0x1p-31 >= 1 : share + double(word) * 0x1p-32 >= 1;
}

/// The result for a magnitude beyond max, before its sign. P3109's signed formats have an odd code
/// for infinity, all others for max.
double beyond(const NumberFormat& format, Rounding rounding, Saturation saturation, bool negative) {
  const bool inward = rounding == Rounding::toward_zero ||
                      rounding == (negative ? Rounding::up : Rounding::down) ||
                      (rounding == Rounding::to_odd && format.codes != Codes::p3109_signed);
  return format.infinity && saturation == Saturation::none && !inward
             ? double(std::numeric_limits<float>::infinity())
             : double(format.max);
}

class GridSearch {
 public:
  GridSearch(const NumberFormat& format, Rounding rounding, Saturation saturation)
      : format_(format),
        rounding_(rounding),
        saturation_(saturation),
        numbers_(grid_and_one_more(format)) {}

  /// Returns the bits of the result. Magnitudes rise from call to call, mostly: the search begins
  /// where the last one ended.
  uint32_t operator()(uint32_t bits, uint32_t word) {
    const bool negative = bits >> 31 != 0;
    const auto x = double(std::bit_cast<float>(bits & 0x7fffffffu));
    if (std::isnan(x)) return bits;
    const bool infinite = format_.infinity && saturation_ != Saturation::finite;
    const double result =
        std::isinf(x) ? (infinite ? x : double(format_.max)) : magnitude(x, negative, word);
    if (format_.codes == Codes::ieee || result != 0) {
      if (format_.codes == Codes::p3109_unsigned && negative) return without_sign(std::isinf(x));
      return std::bit_cast<uint32_t>(float(result)) | (bits & 0x80000000u);
    }
    return 0;
  }

 private:
  double magnitude(double x, bool negative, uint32_t word) {
    if (x >= numbers_.back()) return beyond(format_, rounding_, saturation_, negative);
    while (numbers_[at_] > x) --at_;
    while (numbers_[at_ + 1] <= x) ++at_;
    const double low = numbers_[at_], high = numbers_[at_ + 1];
    const bool odd =
        format_.codes == Codes::ieee ? std::fmod(low / (high - low), 2) != 0 : at_ % 2 != 0;
    const bool up = goes_up(rounding_, low, x, high, negative, odd, word);
    const double found = up ? high : low;
    return found > double(format_.max) ? beyond(format_, rounding_, saturation_, negative) : found;
  }
  /// The result for a number that is below 0 on a grid without a sign.
  uint32_t without_sign(bool infinite) const {
    const bool to_zero = rounding_ == Rounding::toward_zero || rounding_ == Rounding::up;
    return saturation_ != Saturation::none || (to_zero && !infinite) ? 0 : nan_magnitude;
  }

  NumberFormat format_;
  Rounding rounding_;
  Saturation saturation_;
  std::vector<double> numbers_;
  std::size_t at_ = 0;
};

/// Returns whether all numbers have these bits; those of the one NaN stand for any.
bool all_have(uint32_t bits, const float* values, int64_t count) {
  uint32_t others = 0;
  if (bits == nan_magnitude) {
#pragma omp simd reduction(| : others)
    for (int64_t i = 0; i < count; ++i) others |= uint32_t(values[i] == values[i]);
  } else {
#pragma omp simd reduction(| : others)
    for (int64_t i = 0; i < count; ++i) others |= std::bit_cast<uint32_t>(values[i]) ^ bits;
  }
  return others == 0;
}

std::string difference(uint32_t bits, Rounding rounding, uint32_t found, uint32_t expected) {
  PlainText text;
  text.precision(9);
  text << std::bit_cast<float>(bits) << " (bits " << std::hex << bits << std::dec << "), "
       << name(rounding) << ": got " << std::bit_cast<float>(found) << ", the search finds "
       << std::bit_cast<float>(expected);
  return text.str();
}

}  // namespace

float found_by_search(const NumberFormat& format, Rounding rounding, float x, uint32_t word,
                      Saturation saturation) {
  return std::bit_cast<float>(
      GridSearch(format, rounding, saturation)(std::bit_cast<uint32_t>(x), word));
}

Exhaustive compare_all(const NumberFormat& format, const std::vector<Rounding>& roundings,
                       Saturation saturation, uint64_t first, uint64_t last) {
  if (format.bits > 8)
    fail<UsageError>(vectors_op, "--exhaustive is for formats of at most 8 bits, and ",
                     described(format), " has ", int(format.bits), ". Leave it out.");
  Exhaustive result;
  std::mutex guard;
  for (uint64_t from = first; from < last; from += search_chunk) {
    const auto count = int64_t(std::min(search_chunk, last - from));
    const Tensor x = empty({count});
    float* const inputs = x.data<float>();
#pragma omp parallel for simd
    for (int64_t i = 0; i < count; ++i)
      inputs[i] = std::bit_cast<float>(uint32_t(from + uint64_t(i)));
    for (const Rounding rounding : roundings) {
      const Quantizer quantizer{.grid = format, .rounding = rounding, .saturation = saturation};
      const RandomKey key{search_seed, from / 4};
      const Tensor y = quantized(x, {.quantizer = quantizer, .key = key});
      const float* const values = y.data<float>();
      int64_t different = 0;
      GridSearch search(format, rounding, saturation);
#pragma omp parallel for schedule(static) reduction(+ : different) firstprivate(search)
      for (int64_t part = 0; part < (count + 4095) / 4096; ++part) {
        const int64_t begin = part * 4096, end = std::min(count, begin + 4096);
        // Results do not fall where numbers rise: equal ones at both ends are equal between them.
        const uint32_t low = search(uint32_t(from + uint64_t(begin)), 0),
                       high = search(uint32_t(from + uint64_t(end) - 1), 0);
        if (rounding != Rounding::stochastic && low == high &&
            all_have(low, values + begin, end - begin))
          continue;
        for (int64_t i = begin; i < end; ++i) {
          const uint32_t bits = uint32_t(from + uint64_t(i));
          const uint32_t word =
              rounding == Rounding::stochastic
                  ? Philox::words(key.seed, key.offset + uint64_t(i) / 4)[std::size_t(i % 4)]
                  : 0;
          const uint32_t expected = search(bits, word);
          const uint32_t found = std::bit_cast<uint32_t>(values[i]);
          if (found == expected || (expected == nan_magnitude && std::isnan(values[i]))) continue;
          ++different;
          const std::lock_guard lock(guard);
          if (result.first.empty()) result.first = difference(bits, rounding, found, expected);
        }
      }
      result.compared += count, result.different += different;
    }
  }
  return result;
}

// The inputs of vectors: awkward numbers first, random ones after them.

namespace {

constexpr float beyond_floats = std::numeric_limits<float>::infinity();

/// A number and the floats next to it, with both signs.
void add_around(std::vector<float>& to, double number) {
  if (!(number <= double(std::numeric_limits<float>::max()))) return;
  const auto x = float(number);
  for (const float y : {std::nextafter(x, 0.0f), x, std::nextafter(x, beyond_floats)}) {
    to.push_back(y);
    to.push_back(-y);
  }
}

std::vector<float> special_inputs(const NumberFormat& format) {
  std::vector<float> inputs{0.0f, -0.0f, beyond_floats, -beyond_floats};
  for (const uint32_t nan : {0x7fc00000u, 0xffc12345u, 0x7fa00001u})
    inputs.push_back(std::bit_cast<float>(nan));
  for (const uint32_t bits : {0x1u, 0x7fffffu, 0x800000u, 0x7f7fffffu})
    for (const uint32_t sign : {0u, 0x80000000u})
      inputs.push_back(std::bit_cast<float>(bits | sign));
  const int64_t last = count_of_numbers(format) - 1;
  const double max = number_at(format, last), unit = number_at(format, last + 1) - max;
  for (const double number : {max, max + unit / 2, max + unit, max + 1.5 * unit})
    add_around(inputs, number);
  const double least = number_at(format, 1);
  for (const double number : {least / 2, least, 1.5 * least}) add_around(inputs, number);
  return inputs;
}

/// `wanted` inputs: numbers of the grid and midpoints, some of them one float off.
void add_grid_inputs(std::vector<float>& inputs, const NumberFormat& format, int64_t wanted) {
  const int64_t numbers = count_of_numbers(format);
  for (int64_t k = 0; k < wanted; ++k) {
    const auto i = int64_t(double(numbers - 1) * double(k) / double(wanted));
    const double number = number_at(format, i), middle = (number + number_at(format, i + 1)) / 2;
    auto x = float(k % 4 == 3 ? number : middle);
    if (k % 4 == 1) x = std::nextafter(x, 0.0f);
    if (k % 4 == 2) x = std::nextafter(x, beyond_floats);
    inputs.push_back(k / 4 % 2 == 0 ? x : -x);
  }
}

}  // namespace

std::vector<float> inputs_of(const NumberFormat& format, int64_t count) {
  std::vector<float> inputs = special_inputs(format);
  const int64_t left = std::max<int64_t>(0, count - int64_t(inputs.size()));
  add_grid_inputs(inputs, format, left * 3 / 5);
  const int least = std::max(format.min_exponent - format.significand_bits - 3, -149);
  const int most = std::min(std::ilogb(format.max) + 1, 127);
  Generator generator(11);
  while (int64_t(inputs.size()) < count) {
    const int exponent = least + int(generator.below(uint64_t(most - least + 1)));
    const uint64_t bits = generator.next();
    const double significand = 1 + double(bits >> 41) * 0x1p-23;
    inputs.push_back(float(std::ldexp((bits & 1) != 0 ? -significand : significand, exponent)));
  }
  inputs.resize(std::size_t(count));
  return inputs;
}

}  // namespace halftone::lab
