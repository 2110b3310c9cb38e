// The reader parses the header and checks every offset before it reads a byte of data. It allocates
// nothing beyond the size of the file. The writer uses the official writer's order, and replaces
// the file in one step through core/files.h.
#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <functional>
#include <optional>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include <halftone/core/caching_allocator.h>
#include <halftone/core/factory.h>
#include <halftone/core/files.h>
#include <halftone/core/safetensors.h>
#include <halftone/core/safetensors_header.h>
#include <halftone/core/views.h>

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
