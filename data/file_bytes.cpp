// The size of a file is only a hint (it may grow while it is read), so the limit is checked on the
// bytes that arrive. With the hint, a small file (a folder of images has thousands) needs no buffer
// of a whole chunk.
#include <halftone/data/file_bytes.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fcntl.h>

#include <halftone/core/error.h>
#include <halftone/core/files.h>
#include <halftone/core/memory.h>

namespace halftone::data {

namespace fs = std::filesystem;

std::string file_bytes(std::string_view op, const fs::path& path, int64_t max_bytes) {
  files::require_path(op, path);
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found)
    fail<FormatError>(op, "no such file: ", path.string(), ". Check the path.");
  if (error)
    fail<FormatError>(op, "cannot open the file: ", path.string(), ": ", error.message(),
                      ". Check the path.");
  if (!fs::is_regular_file(status))
    fail<FormatError>(op, "not a file: ", path.string(), " is ",
                      fs::is_directory(status) ? "a directory" : "a device or a pipe",
                      ". Name a regular file.");

  const files::Descriptor file = files::open(path, O_RDONLY | O_NONBLOCK);
  if (!file)
    fail<FormatError>(op, "cannot open the file: ", path.string(), ": ", std::strerror(errno),
                      ". Check the path.");
  std::string bytes;
  constexpr std::size_t chunk = std::size_t(1) << 20;
  const auto limit = std::size_t(std::max<int64_t>(max_bytes, 0));
  const std::uintmax_t promised = fs::file_size(path, error);
  if (!error && promised <= limit)
    or_no_memory(op, int64_t(promised), [&] { bytes.reserve(std::size_t(promised) + 1); });
  const std::size_t step = !error && promised < chunk ? std::size_t(promised) + 1 : chunk;
  std::ptrdiff_t got = 1;
  while (got > 0 && bytes.size() <= limit) {
    const std::size_t before = bytes.size(), wanted = std::min(step, limit + 1 - before);
    or_no_memory(op, int64_t(before + wanted), [&] { bytes.resize(before + wanted); });
    got = files::read_some(file, bytes.data() + before, wanted);
    bytes.resize(before + std::size_t(std::max<std::ptrdiff_t>(got, 0)));
  }
  if (got < 0)
    fail<FormatError>(op, "cannot read the file: ", path.string(), ": ", std::strerror(errno),
                      ". Check the disk.");
  if (bytes.size() > limit)
    fail<FormatError>(op, "the file is too large: ", path.string(), " has more than ", max_bytes,
                      " bytes. Raise the limit if it is meant to be so.");
  return bytes;
}

}  // namespace halftone::data
