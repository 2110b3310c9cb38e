// State dictionaries and .safetensors files.
#include <halftone/core/named_tensors.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include <halftone/core/dtype.h>
#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/core/files.h>
#include <halftone/core/memory.h>
#include <halftone/core/tensor.h>

namespace halftone {

TensorSource source_of(const NamedTensors& tensors) {
  TensorSource source;
  for (const auto& [name, x] : tensors) source.infos.push_back(info_of(name, x));
  source.tensor = [tensors](const std::string& name) { return tensors.at(name); };
  return source;
}

// Taking entries of a state dictionary, with errors that say which one is wrong.

Tensor Entries::find(const std::string& name) {
  const auto entry = rest_.extract(name);
  return entry.empty() ? Tensor{} : entry.mapped();
}

Tensor Entries::take(const std::string& name) {
  Tensor x = find(name);
  if (!x.defined())
    fail<UsageError>(loading_, "there is no entry \"", name, "\". Load what ", saver_, " saved.");
  return x;
}

Tensor Entries::take(const std::string& name, const Shape& shape, DType dtype) {
  Tensor x = take(name);
  if (x.shape() != shape || x.dtype() != dtype)
    fail<ShapeError>(loading_, "the entry \"", name, "\" is ", described(x), " instead of ", shape,
                     ' ', dtype, ". Load what ", saver_, " saved.");
  return x;
}

double Entries::number(const std::string& name) {
  const Tensor x = take(name);
  if (x.numel() != 1)
    fail<UsageError>(loading_, "the entry \"", name, "\" is ", described(x),
                     ". It must have one element.");
  return x.item();
}

int64_t Entries::count(const std::string& name, std::string_view called) {
  const double value = number(name);
  if (!(value >= 0 && value <= 9e15 && value == std::floor(value)))
    fail<UsageError>(loading_, called, " is ", value, ". It must be a whole number, 0 or more.");
  return int64_t(value);
}

std::string Entries::text(const std::string& name) {
  const Tensor x = take(name);
  if (x.dtype() != u8)
    fail<UsageError>(loading_, "the entry \"", name, "\" is ", described(x),
                     " instead of a text, which is u8. Load what ", saver_, " saved.");
  std::string text;
  for (const int64_t letter : x.to_vector<int64_t>()) text += char(letter);
  return text;
}

void Entries::refuse_rest() const {
  if (rest_.empty()) return;
  fail<UsageError>(loading_, "the entry ", in_quotes(rest_.begin()->first),
                   " is unknown. Load what ", saver_, " saved.");
}

Tensor text_tensor(std::string_view text) {
  return from_vector(std::vector<int64_t>(text.begin(), text.end()), {int64_t(text.size())}, u8);
}

bool same_values(const Tensor& a, const Tensor& b) {
  if (a.body() == b.body()) return true;
  if (a.shape() != b.shape()) return false;
  if (a.dtype() == b.dtype()) {
    const Tensor x = views::contiguous(a.to(Device::cpu())),
                 y = views::contiguous(b.to(Device::cpu()));
    return x.bytes() == 0 || std::memcmp(x.raw_data(), y.raw_data(), std::size_t(x.bytes())) == 0;
  }
  const auto bits = [](double value) { return std::bit_cast<uint64_t>(value); };
  return std::ranges::equal(a.to_vector<double>(), b.to_vector<double>(), {}, bits, bits);
}

std::optional<double> lost_value(const Tensor& x, DType dtype) {
  if (x.dtype() == dtype || (is_floating(dtype) && facts(dtype).max >= facts(x.dtype()).max))
    return {};
  const Tensor host = views::contiguous(x.to(Device::cpu()));
  return visit_any(host.dtype(), [&]<class From>() -> std::optional<double> {
    const std::span<const From> values(host.data<From>(), std::size_t(host.numel()));
    const double largest = facts(dtype).max;
    for (const From stored : values) {
      const auto value = convert<double>(stored);
      if (is_floating(dtype) && !(std::abs(value) > largest)) continue;
      const auto kept =
          visit_any(dtype, [&]<class To>() { return convert<double>(convert<To>(stored)); });
      if (is_floating(dtype) ? std::isfinite(value) && !std::isfinite(kept) : kept != value)
        return value;
    }
    return {};
  });
}

}  // namespace halftone

// The header of a safetensors file as data: the facts of the format
// (dtypes, limits) and the parser that turns untrusted JSON into a list of entries.

namespace halftone::safetensors {

inline constexpr uint64_t header_limit = 100'000'000;  // bytes, as in the official reader
inline constexpr std::size_t entry_limit = 100'000;    // tensors and metadata keys together
inline constexpr std::size_t name_limit = 1024;        // bytes
inline constexpr std::size_t rank_limit = 64;          // dimensions of a tensor in a file
inline constexpr std::string_view metadata_key = "__metadata__";

/// The dtypes of the format by increasing alignment; the official writer sorts tensors by this
/// order, descending.
struct FileDType {
  std::string_view name;
  uint64_t bits;
  std::optional<DType> dtype;
};
inline constexpr std::array<FileDType, 22> file_dtypes{{
    {"BOOL", 8, boolean}, {"F4", 4, {}},          {"F6_E2M3", 6, {}},      {"F6_E3M2", 6, {}},
    {"U8", 8, u8},        {"I8", 8, {}},          {"F8_E5M2", 8, f8_e5m2}, {"F8_E4M3", 8, f8_e4m3},
    {"F8_E8M0", 8, {}},   {"F8_E4M3FNUZ", 8, {}}, {"F8_E5M2FNUZ", 8, {}},  {"I16", 16, i16},
    {"U16", 16, {}},      {"F16", 16, f16},       {"BF16", 16, bf16},      {"I32", 32, i32},
    {"U32", 32, {}},      {"F32", 32, f32},       {"C64", 64, {}},         {"F64", 64, f64},
    {"I64", 64, i64},     {"U64", 64, {}},
}};

/// One tensor as described by the header: complete, but not yet compared with the size of the file.
struct Entry {
  std::string name;
  const FileDType* dtype = nullptr;  // null: of a later version of the format, or of none
  std::string dtype_name;
  std::vector<uint64_t> shape, offsets;
  bool has_dtype = false, has_shape = false, has_offsets = false;
};

struct Header {
  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;
};

/// Parses the header without its length. Throws FormatError (and UnsupportedError for more than
/// rank_limit dimensions), naming `path`.
Header parse_header(const std::string& text, const std::string& path);

template <class... Parts>
[[noreturn]] void malformed(const std::string& path, const Parts&... parts) {
  fail<FormatError>("load_safetensors", parts..., ", in ", path,
                    ". The file is damaged or not safetensors: save it again.");
}

// A SAX parser that accepts only the grammar of the format, so nesting is at most three. It rejects
// duplicate keys and limits the number of entries and the lengths of names. This closes the gaps
// that the audit of the official reader left open (Trail of Bits 2023; header bombs of 100,000
// entries).

namespace {
/// Takes the parser's events and knows at every point which may come next. Any other event throws.
class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderReader(const std::string& path) : path_(path) {}
  Header take() && { return std::move(header_); }

  bool null() override { unexpected("null"); }
  bool boolean(bool) override { unexpected("true or false"); }
  bool number_integer(int64_t) override { unexpected("a negative number"); }
  bool number_float(double, const std::string& text) override {
    unexpected("the number " + text.substr(0, 40) + ", no whole number of 64 bits,");
  }
  bool binary(binary_t&) override { unexpected("binary data"); }

  bool number_unsigned(uint64_t value) override {
    if (place_ == Place::shape) {
      if (entry().shape.size() == rank_limit)
        fail<UnsupportedError>("load_safetensors", "tensor ", in_quotes(entry().name),
                               " has more than ", rank_limit, " dimensions, in ", path_,
                               ". Reshape it before saving.");
      entry().shape.push_back(value);
    } else if (place_ == Place::offsets && entry().offsets.size() < 2) {
      entry().offsets.push_back(value);
    } else {
      unexpected("a number");
    }
    return true;
  }

  bool string(std::string& text) override {
    if (place_ == Place::dtype) {
      const auto* known = std::ranges::find(file_dtypes, text, &FileDType::name);
      entry().dtype = known == file_dtypes.end() ? nullptr : known;
      entry().dtype_name = text.substr(0, name_limit);
      place_ = Place::entry;
    } else if (place_ == Place::metadata_value) {
      header_.metadata[key_] = text;
      place_ = Place::metadata;
    } else {
      unexpected("a string");
    }
    return true;
  }

  bool start_object(std::size_t) override {
    if (place_ == Place::start) place_ = Place::file;
    else if (place_ == Place::tensor) place_ = Place::entry;
    else if (place_ == Place::metadata_object) place_ = Place::metadata;
    else unexpected("an object");
    return true;
  }

  bool key(std::string& key) override {
    key_ = key;
    if (place_ == Place::entry) {
      start_field();
      return true;
    }
    if (key.size() > name_limit)
      malformed(path_, "a name of ", key.size(), " bytes is over the limit of ", name_limit, ": ",
                in_quotes(key));
    auto& names = place_ == Place::metadata ? metadata_names_ : names_;
    if (!names.insert(key).second) malformed(path_, "duplicate key ", in_quotes(key));
    if (names_.size() + metadata_names_.size() > entry_limit)
      malformed(path_, "more than ", entry_limit, " entries in the header");
    if (place_ == Place::metadata) {
      place_ = Place::metadata_value;
    } else if (key == metadata_key) {
      place_ = Place::metadata_object;
    } else {
      header_.entries.emplace_back().name = key;
      place_ = Place::tensor;
    }
    return true;
  }

  bool end_object() override {
    if (place_ == Place::entry) {
      const Entry& e = entry();
      require(e.has_dtype, "dtype");
      require(e.has_shape, "shape");
      require(e.has_offsets, "data_offsets");
    }
    place_ = Place::file;
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ == Place::shape_array) place_ = Place::shape;
    else if (place_ == Place::offsets_array) place_ = Place::offsets;
    else unexpected("an array");
    return true;
  }

  bool end_array() override {
    if (place_ == Place::offsets && entry().offsets.size() != 2)
      malformed(path_, "data_offsets of tensor ", in_quotes(entry().name), " has ",
                entry().offsets.size(), " numbers, not 2");
    place_ = Place::entry;
    return true;
  }

  bool parse_error(std::size_t at, const std::string& token,
                   const nlohmann::detail::exception&) override {
    malformed(path_, "the header is not valid JSON at byte ", at, ", near ", in_quotes(token));
  }

 private:
  enum class Place {
    start,
    file,
    tensor,
    entry,
    dtype,
    shape_array,
    shape,
    offsets_array,
    offsets,
    metadata_object,
    metadata,
    metadata_value
  };

  Entry& entry() { return header_.entries.back(); }

  void require(bool present, std::string_view field) {
    if (!present)
      malformed(path_, "tensor ", in_quotes(entry().name), " has no field ", in_quotes(field));
  }

  void start_field() {
    Entry& e = entry();
    bool again = false;
    if (key_ == "dtype") again = std::exchange(e.has_dtype, true), place_ = Place::dtype;
    else if (key_ == "shape") again = std::exchange(e.has_shape, true), place_ = Place::shape_array;
    else if (key_ == "data_offsets")
      again = std::exchange(e.has_offsets, true), place_ = Place::offsets_array;
    else malformed(path_, "unknown field ", in_quotes(key_), " of tensor ", in_quotes(e.name));
    if (again)
      malformed(path_, "duplicate key ", in_quotes(key_), " of tensor ", in_quotes(e.name));
  }

  [[noreturn]] void unexpected(std::string_view what) {
    malformed(path_, what, " is not allowed in the header, after the key ", in_quotes(key_));
  }

  const std::string& path_;
  Header header_;
  Place place_ = Place::start;
  std::string key_;
  std::set<std::string> names_, metadata_names_;
};
}  // namespace

Header parse_header(const std::string& text, const std::string& path) {
  if (text.empty() || text[0] != '{') malformed(path, "the header does not start with '{'");
  // The parser would take a zero byte for the end of the text and never read the rest.
  if (const std::size_t zero = text.find('\0'); zero != std::string::npos)
    malformed(path, "the header is not valid JSON at byte ", zero + 1, ", a zero byte");
  HeaderReader reader(path);
  nlohmann::json::sax_parse(text, &reader);
  return std::move(reader).take();
}

}  // namespace halftone::safetensors

// The reader parses the header and checks every offset before it reads a byte of data. It allocates
// nothing beyond the size of the file. The writer uses the official writer's order, and replaces
// the file in one step through core/files.h.

namespace halftone {

namespace {
using namespace safetensors;

static_assert(std::endian::native == std::endian::little, "the data is little-endian");

const FileDType& file_dtype_of(DType dtype) {
  return *std::ranges::find(file_dtypes, std::optional(dtype), &FileDType::dtype);
}

// --- reading

/// Returns the bytes of an entry by its shape and dtype. Sizes of 0 count as 1, so that the strides
/// cannot overflow either.
uint64_t check_bytes(const Entry& entry, const std::string& path) {
  int64_t bits = int64_t(entry.dtype->bits);
  bool overflow = false;
  for (const uint64_t size : entry.shape)
    overflow |= __builtin_mul_overflow(bits, std::max<uint64_t>(size, 1), &bits);
  if (overflow)
    malformed(path, "the shape of tensor ", in_quotes(entry.name), " overflows 64 bits");
  if (std::ranges::find(entry.shape, 0u) != entry.shape.end()) return 0;
  if (bits % 8 != 0)
    malformed(path, "the ", entry.dtype->name, " tensor ", in_quotes(entry.name), " has ", bits,
              " bits, which are no whole bytes");
  return uint64_t(bits) / 8;
}

/// Returns what an entry is that no Tensor can be; nullopt for others.
std::optional<std::string> unsupported(const Entry& entry) {
  if (entry.dtype && entry.dtype->dtype && entry.shape.size() <= std::size_t(Dims::max_rank))
    return std::nullopt;
  std::string text = "[";
  for (const uint64_t size : entry.shape)
    text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "] " + shortened(entry.dtype_name, 40);
}

/// Sorts the entries by position and checks that they tile the data exactly: a gap or a tail could
/// hide another file.
void check_layout(std::vector<Entry>& entries, uint64_t data_bytes, const std::string& path) {
  std::ranges::sort(entries, {}, &Entry::offsets);
  uint64_t expected = 0;
  for (const Entry& entry : entries) {
    const uint64_t begin = entry.offsets[0], end = entry.offsets[1];
    // The size of a dtype that is not known here is not known either.
    const std::optional<uint64_t> bytes =
        entry.dtype ? std::optional(check_bytes(entry, path)) : std::nullopt;
    if (begin > end || end > data_bytes)
      malformed(path, "data_offsets [", begin, ", ", end, "] of tensor ", in_quotes(entry.name),
                " do not fit into ", data_bytes, " bytes of data");
    if (begin != expected)
      malformed(path, begin < expected ? "overlap" : "hole", " in the data: tensor ",
                in_quotes(entry.name), " starts at ", begin, ", the bytes before it end at ",
                expected);
    if (bytes && end - begin != *bytes)
      malformed(path, "tensor ", in_quotes(entry.name), " has ", end - begin,
                " bytes of data, its shape and dtype need ", *bytes);
    expected = end;
  }
  if (expected != data_bytes)
    malformed(path, "the tensors end at byte ", expected, " of ", data_bytes, " bytes of data");
}

using files::Descriptor;

void read_all(const Descriptor& file, void* to, std::size_t bytes, const std::string& path) {
  while (bytes > 0) {
    const std::ptrdiff_t got = files::read_some(file, to, bytes);
    if (got < 0)
      fail<FormatError>("load_safetensors", "cannot read the file: ", path, ": ",
                        std::strerror(errno), ". Check the path.");
    if (got == 0) malformed(path, "the file became shorter while it was read");
    to = static_cast<char*>(to) + got, bytes -= std::size_t(got);
  }
}

uint64_t size_of_file(const Descriptor& file, const std::string& path) {
  struct stat status {};
  if (fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode))
    fail<FormatError>("load_safetensors", "not a regular file: ", path, ". Check the path.");
  return uint64_t(status.st_size);
}

Tensor read_tensor(const Descriptor& file, const Entry& entry, const std::string& path) {
  Shape shape;
  for (const uint64_t size : entry.shape) shape.push_back(int64_t(size));
  Tensor tensor = empty(shape, *entry.dtype->dtype);
  read_all(file, tensor.raw_data(), std::size_t(tensor.bytes()), path);
  if (tensor.dtype() == boolean) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(tensor.raw_data());
    const auto* wrong =
        std::find_if(bytes, bytes + tensor.bytes(), [](uint8_t byte) { return byte > 1; });
    if (wrong != bytes + tensor.bytes())
      malformed(path, "a byte of the BOOL tensor ", in_quotes(entry.name), " is ", int(*wrong),
                ", not 0 or 1");
  }
  return tensor;
}

// --- writing

std::string json_string(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    fail<UsageError>("save_safetensors", "not UTF-8: ", in_quotes(text),
                     ". Names and metadata must be UTF-8.");
  }
}

void check_names(const TensorSource& tensors, const std::map<std::string, std::string>& metadata) {
  const auto check_length = [](const std::string& name) {
    if (name.size() > name_limit)
      fail<UsageError>("save_safetensors", "a name of ", name.size(),
                       " bytes is over the limit of ", name_limit, ": ", in_quotes(name),
                       ". Use a shorter one.");
  };
  if (tensors.infos.size() + metadata.size() + 1 > entry_limit)
    fail<UsageError>("save_safetensors", tensors.infos.size() + metadata.size(),
                     " entries reach the limit of ", entry_limit, ". Use several files.");
  for (const auto& [name, text] : metadata) check_length(name);
  for (const TensorInfo& tensor : tensors.infos) {
    check_length(tensor.name);
    if (tensor.name == metadata_key)
      fail<UsageError>("save_safetensors", "no tensor may be named ", in_quotes(tensor.name),
                       ". Pass metadata as such.");
  }
}

/// The order of the data: alignment descending, so that everything is aligned, then by name.
std::vector<const TensorInfo*> in_file_order(const std::vector<TensorInfo>& tensors) {
  std::vector<const TensorInfo*> order;
  for (const TensorInfo& tensor : tensors) order.push_back(&tensor);
  std::ranges::sort(order, {}, &TensorInfo::name);
  std::ranges::stable_sort(order, std::greater(),
                           [](const TensorInfo* tensor) { return &file_dtype_of(tensor->dtype); });
  return order;
}

std::string header_of(const std::vector<const TensorInfo*>& order,
                      const std::map<std::string, std::string>& metadata) {
  std::string text = "{";
  if (!metadata.empty()) {
    text += json_string(std::string(metadata_key)) + ":{";
    for (const auto& [key, value] : metadata)
      text += json_string(key) + ':' + json_string(value) + ',';
    text.back() = '}';
    text += ',';
  }
  int64_t begin = 0;
  for (const TensorInfo* tensor : order) {
    const int64_t end = begin + tensor->bytes();
    text += json_string(tensor->name) + ":{\"dtype\":\"" +
            std::string(file_dtype_of(tensor->dtype).name);
    text += "\",\"shape\":" +
            nlohmann::json(std::vector(tensor->shape.begin(), tensor->shape.end())).dump();
    text += ",\"data_offsets\":[" + std::to_string(begin) + ',' + std::to_string(end) + "]},";
    begin = end;
  }
  if (text.size() > 1) text.pop_back();
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (text.size() > header_limit)
    fail<UsageError>("save_safetensors", "the header of ", text.size(),
                     " bytes is over the limit of ", header_limit,
                     ". Use less metadata, or several files.");
  return text;
}
}  // namespace

void save_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                      const std::map<std::string, std::string>& metadata) {
  stream_safetensors(path, source_of(tensors), metadata);
}

void stream_safetensors(const std::filesystem::path& path, const TensorSource& tensors,
                        const std::map<std::string, std::string>& metadata) {
  check_names(tensors, metadata);
  if (!tensors.tensor && !tensors.infos.empty())
    fail<UsageError>("save_safetensors", "the source of ", tensors.infos.size(),
                     " tensors has no function `tensor`. Give it one.");
  const std::vector<const TensorInfo*> order = in_file_order(tensors.infos);
  const std::string header = header_of(order, metadata);
  const uint64_t header_bytes = header.size();

  files::Replacement file("save_safetensors", path);
  file.write(&header_bytes, sizeof header_bytes);
  file.write(header.data(), header.size());
  const MemoryScope scope(MemoryUse::workspace);  // for copies, one tensor at a time
  for (const TensorInfo* info : order) {
    const Tensor given = tensors.tensor(info->name).detach();
    if (!given.defined())
      fail<UsageError>("save_safetensors", "tensor ", in_quotes(info->name),
                       " is undefined. Leave it out.");
    if (given.dtype() != info->dtype || given.shape() != info->shape)
      fail<UsageError>("save_safetensors", "tensor ", in_quotes(info->name), " is ",
                       described(given), ", announced as ", info->shape, ' ', info->dtype,
                       ". Announce what comes.");
    const Tensor tensor = views::contiguous(given.to(Device::cpu()));
    file.write(tensor.raw_data(), std::size_t(tensor.bytes()));
  }
  file.commit();
}

SafetensorsFile load_safetensors(const std::filesystem::path& path) {
  const std::string name = path.string();
  files::require_path("load_safetensors", path);
  // Non-blocking, so that a pipe is refused rather than waited for.
  const Descriptor file = files::open(path, O_RDONLY | O_NONBLOCK);
  if (!file)
    fail<FormatError>("load_safetensors", "cannot open the file: ", name, ": ",
                      std::strerror(errno), ". Check the path.");
  const uint64_t file_bytes = size_of_file(file, name);
  uint64_t header_bytes = 0;
  if (file_bytes < sizeof header_bytes)
    malformed(name, "the file has ", file_bytes, " bytes, fewer than 8");
  read_all(file, &header_bytes, sizeof header_bytes, name);
  if (header_bytes > header_limit)
    malformed(name, "header length ", header_bytes, " is over the limit of ", header_limit,
              " bytes");
  if (header_bytes > file_bytes - sizeof header_bytes)
    malformed(name, "header length ", header_bytes, " is beyond the end of the file of ",
              file_bytes, " bytes");

  std::string text;
  or_no_memory("load_safetensors", int64_t(header_bytes), [&] { text.resize(header_bytes); });
  read_all(file, text.data(), text.size(), name);
  Header header = parse_header(text, name);
  check_layout(header.entries, file_bytes - sizeof header_bytes - header_bytes, name);
  SafetensorsFile result{.tensors = {}, .metadata = std::move(header.metadata)};
  for (const Entry& entry : header.entries) {
    if (auto what = unsupported(entry)) {
      result.unsupported.emplace(entry.name, std::move(*what));
      if (lseek(file.get(), off_t(entry.offsets[1] - entry.offsets[0]), SEEK_CUR) < 0)
        fail<FormatError>("load_safetensors", "cannot read the file: ", name, ": ",
                          std::strerror(errno), ". Check the path.");
    } else {
      result.tensors.emplace(entry.name, read_tensor(file, entry, name));
    }
  }
  return result;
}

const Tensor& SafetensorsFile::at(const std::string& name) const {
  if (const auto found = tensors.find(name); found != tensors.end()) return found->second;
  if (const auto found = unsupported.find(name); found != unsupported.end())
    fail<UnsupportedError>("load_safetensors", "tensor ", in_quotes(name), " is ", found->second,
                           ", which no tensor can be here. Convert it before saving: another "
                           "dtype, at most ",
                           Dims::max_rank, " dimensions.");
  std::vector<std::string> names;
  for (const auto& [own, x] : tensors) names.push_back(own);
  fail<UsageError>("load_safetensors", "there is no tensor ", in_quotes(name),
                   ". The names are: ", listed(names), ".");
}

void SafetensorsFile::require_all() const {
  if (!unsupported.empty()) static_cast<void>(at(unsupported.begin()->first));
}

}  // namespace halftone
