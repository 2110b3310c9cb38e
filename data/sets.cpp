// The reader does not trust the header: it takes no more memory than the file can
// deliver. One read beyond the end makes zlib verify the checksum of a compressed
// file.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>

#include <fcntl.h>
#include <zlib.h>

#include <halftone/core/factory.h>
#include <halftone/core/files.h>
#include <halftone/data/sets/idx.h>

namespace halftone::data {

namespace {
constexpr int64_t largest_idx = int64_t(1) << 31;  // bytes of elements
constexpr std::size_t chunk_bytes = std::size_t(1) << 20;

/// A file for reading through zlib, which passes plain files through unchanged. Bytes after the
/// compressed stream are ignored, as gzip itself ignores them.
class GzipFile {
 public:
  explicit GzipFile(const std::string& path) : path_(path) {
    files::require_path("read_idx", path);
    files::Descriptor file = files::open(path, O_RDONLY | O_NONBLOCK);
    if (file) file_ = gzdopen(file.get(), "rb");
    if (file_) {
      file.release();
      return;
    }
    if (errno == ENOENT) fail<FormatError>("read_idx", "no such file: ", path, ". Check the path.");
    fail<FormatError>("read_idx", "cannot open the file: ", path, ": ", std::strerror(errno),
                      ". Check the path.");
  }
  ~GzipFile() { gzclose_r(file_); }
  GzipFile(const GzipFile&) = delete;
  GzipFile& operator=(const GzipFile&) = delete;

  /// Reads up to `wanted` bytes (at most chunk_bytes); fewer only at the end of the file.
  std::size_t read(uint8_t* to, std::size_t wanted) {
    const int got = gzread(file_, to, unsigned(wanted));
    if (got < 0 || std::size_t(got) < wanted) check();
    return std::size_t(std::max(got, 0));
  }

 private:
  void check() {
    int code = Z_OK;
    std::string text = gzerror(file_, &code);  // "<fd:3>: what"
    text.replace(0, std::min(text.find('>') + 1, text.size()), path_);
    if (code == Z_OK || code == Z_STREAM_END) return;
    if (code == Z_ERRNO)
      fail<FormatError>("read_idx", "cannot read the file: ", text, ". Check the path.");
    fail<FormatError>("read_idx", "damaged gzip file: ", text, ". Fetch the file again.");
  }

  std::string path_;
  gzFile file_ = nullptr;
};

std::string in_hex(const uint8_t* bytes, std::size_t count) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text;
  for (std::size_t i = 0; i < count; ++i) {
    if (i) text += ' ';
    text += digits[bytes[i] >> 4];
    text += digits[bytes[i] & 15];
  }
  return text;
}

Shape read_header(GzipFile& file, const std::string& path) {
  std::array<uint8_t, 16> bytes{};
  const std::size_t got = file.read(bytes.data(), 4);
  if (got == 0)
    fail<FormatError>("read_idx", "the file is empty: ", path, ". Fetch the file again.");
  const std::size_t rank = bytes[3];
  if (got < 4 || bytes[0] != 0 || bytes[1] != 0 || bytes[2] != 8 || rank < 1 || rank > 4)
    fail<FormatError>(
        "read_idx", "not an IDX file of bytes: ", path, " starts with ", in_hex(bytes.data(), got),
        "; it must start with 00 00 08 and a rank of 01 to 04. Check that this is the right file.");
  const std::size_t sizes = file.read(bytes.data(), 4 * rank);
  if (sizes < 4 * rank)
    fail<FormatError>("read_idx", "truncated header: ", path, " holds ", sizes, " of the ",
                      4 * rank, " bytes of its sizes. Fetch the file again.");
  Shape shape;
  for (std::size_t i = 0; i < rank; ++i) {
    const uint8_t* b = bytes.data() + 4 * i;
    shape.push_back(int64_t(b[0]) << 24 | int64_t(b[1]) << 16 | int64_t(b[2]) << 8 | int64_t(b[3]));
  }
  return shape;
}

/// Checks the product of the sizes, each below 2^32. A size of 0 counts as 1 here, so that no later
/// product of sizes (strides) can overflow either.
void check_total(const Shape& shape, const std::string& path) {
  int64_t total = 1;
  for (const int64_t size : shape) {
    total *= std::max<int64_t>(size, 1);  // at most 2^31 * 2^32
    if (total > largest_idx)
      fail<FormatError>("read_idx", "too large: ", path, " promises ", shape,
                        " bytes, the limit is ", largest_idx,
                        ". Split the file, or fetch it again if it should be smaller.");
  }
}

/// Allocates the elements that the header promises, if the file can hold that many: deflate packs
/// at most 1032 bytes into one.
Tensor elements_for(const Shape& shape, const std::string& path) {
  std::error_code error;
  const auto in_file = std::filesystem::file_size(path, error);
  if (!error && std::size_t(numel_of(shape)) > 1032 * in_file)
    fail<FormatError>("read_idx", "truncated file: ", path, ", of ", in_file,
                      " bytes, cannot hold the ", numel_of(shape),
                      " bytes that its header promises, ", shape, ". Fetch the file again.");
  return empty(shape, u8);
}

void read_elements(GzipFile& file, Tensor& to, const std::string& path) {
  const auto promised = std::size_t(to.numel());
  for (std::size_t done = 0; done < promised; done += chunk_bytes) {
    const std::size_t wanted = std::min(chunk_bytes, promised - done);
    const std::size_t got = file.read(to.data<uint8_t>() + done, wanted);
    if (got < wanted)
      fail<FormatError>("read_idx", "truncated file: ", path, " holds ", done + got, " of the ",
                        promised, " bytes that its header promises, ", to.shape(),
                        ". Fetch the file again.");
  }
  uint8_t beyond = 0;
  if (file.read(&beyond, 1) != 0)
    fail<FormatError>("read_idx", "trailing bytes: ", path, " goes on after the ", promised,
                      " bytes that its header promises, ", to.shape(), ". Fetch the file again.");
}
}  // namespace

Tensor read_idx(const std::filesystem::path& path) {
  const std::string name = path.string();
  GzipFile file(name);
  const Shape shape = read_header(file, name);
  check_total(shape, name);
  Tensor tensor = elements_for(shape, name);
  read_elements(file, tensor, name);
  return tensor;
}

}  // namespace halftone::data
