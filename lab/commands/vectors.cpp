// The content of a file of vectors: cases of a quantizer, their scales, and one result per
// rounding.
#include <halftone/lab/commands/vectors.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include <nlohmann/json.hpp>

#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/core/formats/quantizer.h>

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

/// The scales of a matrix: a number on the grid times its block's scale, then times the tensor's.
struct Scales {
  Tensor block{}, tensor{};
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
      const Scale& scale = blocks_.empty()
                               ? whole_
                               : blocks_[std::size_t(row / n.rows * along + column / n.columns)];
      const float y = quantize_element(n, scale, x_.data<float>()[i],
                                       std::bit_cast<uint32_t>(words.data<int32_t>()[i]));
      if (std::bit_cast<uint32_t>(y) != std::bit_cast<uint32_t>(expected.data<float>()[i]))
        fail<Error>(vectors_op, described(quantizer), ", element ", i, ": the kernel gives ",
                    expected.data<float>()[i], ", the written scales give ", y,
                    ". This is an error of halftone. Report it.");
    }
  }

 private:
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

}  // namespace halftone::lab
