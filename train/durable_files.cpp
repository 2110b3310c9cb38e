// POSIX calls. A file's bytes and its name are separate: fsync on the file makes the bytes durable,
// fsync on its directory the name (Pillai et al. 2014, "All File Systems Are Not Created Equal").
#include <halftone/train/durable_files.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
#include <zlib.h>

#include <sys/file.h>
#include <sys/stat.h>

#include <halftone/core/error.h>

namespace halftone::train {

namespace fs = std::filesystem;

namespace {
constexpr std::string_view temporary_prefix = ".tmp-";

[[noreturn]] void fail_to_write(const fs::path& path, int error) {
  fail<FormatError>("checkpoint", "cannot write ", path.string(), ": ", std::strerror(error),
                    ". Check the directory, its permissions and the free space.");
}

/// Opens a regular file read-only. Does not follow links or wait for pipes.
Descriptor open_regular(const fs::path& path, uint64_t& bytes) {
  Descriptor file = files::open(path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW);
  struct stat status {};
  if (!file || fstat(file.get(), &status) != 0)
    fail<FormatError>("checkpoint", "cannot open ", path.string(), ": ", std::strerror(errno),
                      ". Use another checkpoint.");
  if (!S_ISREG(status.st_mode))
    fail<FormatError>("checkpoint", "not a regular file: ", path.string(),
                      ". Use another checkpoint.");
  bytes = uint64_t(status.st_size);
  return file;
}

Descriptor open_directory(const fs::path& path) {
  return files::open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
}

/// Some file systems of clusters have no locks.
enum class Locked { here, elsewhere, unsupported };
Locked lock(const Descriptor& held) {
  if (flock(held.get(), LOCK_EX | LOCK_NB) == 0) return Locked::here;
  return errno == EWOULDBLOCK ? Locked::elsewhere : Locked::unsupported;
}

/// Reads up to `bytes` bytes; fewer at the end of the file.
std::size_t read_some(const Descriptor& file, void* to, std::size_t bytes, const fs::path& path) {
  const std::ptrdiff_t got = files::read_some(file, to, bytes);
  if (got >= 0) return std::size_t(got);
  fail<FormatError>("checkpoint", "cannot read ", path.string(), ": ", std::strerror(errno),
                    ". Use another checkpoint.");
}
}  // namespace

void write_durably(const fs::path& path, std::string_view bytes) {
  const Descriptor file = files::open(path, O_WRONLY | O_CREAT | O_EXCL);
  if (!file || !files::write_all(file, bytes) || fsync(file.get()) != 0) fail_to_write(path, errno);
}

void sync_directory(const fs::path& path) {
  const Descriptor directory = files::open(path, O_RDONLY | O_DIRECTORY);
  if (!directory) fail_to_write(path, errno);
  if (fsync(directory.get()) != 0 && errno != EINVAL && errno != ENOTSUP && errno != ENOSYS)
    fail_to_write(path, errno);
}

bool rename_to_new(const fs::path& from, const fs::path& to) {
  if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return true;
  if (errno == EEXIST || errno == ENOTEMPTY) return false;
  if (errno != EINVAL && errno != ENOSYS) fail_to_write(to, errno);
  // This file system lacks that flag. rename() replaces at most an empty directory, which loses
  // nothing; the check before it refuses even that, except in a race.
  struct stat status {};
  if (lstat(to.c_str(), &status) == 0) return false;
  if (rename(from.c_str(), to.c_str()) == 0) return true;
  if (errno == EEXIST || errno == ENOTEMPTY || errno == ENOTDIR) return false;
  fail_to_write(to, errno);
}

fs::path temporary_name(const fs::path& path, std::string_view word) {
  static std::atomic<uint64_t> counter{0};
  std::string name(temporary_prefix);
  name.append(word).append(files::beginning_of_name(path));
  name += '-' + std::to_string(getpid()) + '-' + std::to_string(++counter);
  return path.parent_path() / name;
}

bool is_temporary(const fs::path& path) {
  return path.filename().string().starts_with(temporary_prefix);
}

TemporaryName make_temporary(const fs::path& path) {
  while (true) {
    const fs::path name = temporary_name(path, "");
    if (mkdir(name.c_str(), 0777) != 0) {
      if (errno == EEXIST) continue;  // a crashed process with our number left it
      fail_to_write(path, errno);
    }
    Descriptor held = open_directory(name);
    if (!held && errno != ENOENT) {
      const int error = errno;
      rmdir(name.c_str());
      fail_to_write(path, error);
    }
    // Another process may have removed it as abandoned before the lock: then try again.
    struct stat opened {
    }, named{};
    if (held && lock(held) != Locked::elsewhere && fstat(held.get(), &opened) == 0 &&
        lstat(name.c_str(), &named) == 0 && opened.st_ino == named.st_ino)
      return {name, std::move(held)};
  }
}

Descriptor try_lock(const fs::path& directory) {
  Descriptor held = open_directory(directory);
  if (held && lock(held) == Locked::here) return held;
  return Descriptor();
}

std::string read_text(const fs::path& path, uint64_t limit) {
  uint64_t bytes = 0;
  const Descriptor file = open_regular(path, bytes);
  if (bytes > limit)
    fail<FormatError>("checkpoint", path.string(), " has ", bytes, " bytes, the limit is ", limit,
                      ". Use another checkpoint.");
  std::string text(bytes + 1, '\0');
  std::size_t have = 0;
  while (have < text.size()) {
    const std::size_t got = read_some(file, text.data() + have, text.size() - have, path);
    if (got == 0) break;
    have += got;
  }
  if (have > bytes)
    fail<FormatError>("checkpoint", path.string(), " grew while it was read. Wait for its writer.");
  text.resize(have);
  return text;
}

FileSum sum_of(const fs::path& path) {
  uint64_t bytes = 0;
  const Descriptor file = open_regular(path, bytes);
  FileSum sum{.bytes = 0, .crc32 = uint32_t(crc32(0, nullptr, 0))};
  std::vector<Bytef> buffer(std::size_t(std::clamp<uint64_t>(bytes, 1, uint64_t(1) << 20)));
  while (const std::size_t got = read_some(file, buffer.data(), buffer.size(), path)) {
    sum.crc32 = uint32_t(crc32(sum.crc32, buffer.data(), uInt(got)));
    sum.bytes += got;
  }
  return sum;
}

uint64_t size_of(const fs::path& path) {
  uint64_t bytes = 0;
  open_regular(path, bytes);
  return bytes;
}

// The file is never removed: if one process removed it while another waits to open it, the other
// would lock a file without a name.

namespace {
/// Returns "process 4711 on atlas, since 2026-01-31 12:00:00 UTC".
std::string who_and_when() {
  char host[256] = "", date[32] = "";
  gethostname(host, sizeof host - 1);
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  std::strftime(date, sizeof date, "%Y-%m-%d %H:%M:%S", &utc);
  return "process " + std::to_string(getpid()) + " on " + host + ", since " + date + " UTC";
}

/// Returns the printable text that another process has written.
std::string holder_in(const files::Descriptor& file) {
  char text[400];
  const std::ptrdiff_t got = files::read_some(file, text, sizeof text);
  std::string holder(text, std::size_t(got > 0 ? got : 0));
  holder.resize(std::min(holder.find('\n'), holder.size()));
  return holder.empty() ? "another process" : printable(holder);
}
}  // namespace

DirectoryLock::DirectoryLock(const std::filesystem::path& directory, std::string_view op,
                             int (*system_lock)(int file, int operation)) {
  const std::filesystem::path path = directory / ".lock";
  file_ = files::open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK);
  struct stat status {};
  if (!file_ || fstat(file_.get(), &status) != 0)
    fail<FormatError>(op, "cannot write ", path.string(), ": ", std::strerror(errno),
                      ". Check the directory, its permissions and the free space.");
  if (!S_ISREG(status.st_mode))
    fail<FormatError>(op, "not a regular file: ", path.string(), ". Remove it.");
  if (status.st_nlink > 1)
    fail<FormatError>(op, path.string(), " is a file of ", status.st_nlink,
                      " names (hard links), another of which may be no lock. Remove this one.");

  int result = 0;
  do result = (system_lock ? system_lock : flock)(file_.get(), LOCK_EX | LOCK_NB);
  while (result != 0 && errno == EINTR);
  if (result != 0 && errno == EWOULDBLOCK)
    fail<UsageError>(op, "another process is at work in ", directory.string(), ": ",
                     holder_in(file_), ". Wait for its end, stop it, or name another directory.");
  holds_ = result == 0;  // other errors: the file system does not support locks
  if (!holds_) return;
  // The text only informs people: a full disk must not stop the training.
  const std::string holder = who_and_when() + '\n';
  std::string_view bytes = holder;
  if (ftruncate(file_.get(), 0) == 0) files::write_all(file_, bytes);
}

}  // namespace halftone::train
