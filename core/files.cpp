// POSIX calls. Links are followed by hand, one at a time, because the target of the last link is
// the file to replace, and may not exist yet.
#include <halftone/core/files.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <halftone/core/error.h>
#include <halftone/core/memory.h>

namespace halftone::files {

namespace fs = std::filesystem;

namespace {
using Status = struct stat;

[[noreturn]] void cannot_write(std::string_view op, const fs::path& path, int error) {
  fail<FormatError>(op, "cannot write ", path.string(), ": ", std::strerror(error),
                    ". Check the directory, its permissions and the free space.");
}

[[noreturn]] void no_file(std::string_view op, const fs::path& path, std::string_view what) {
  fail<FormatError>(op, "cannot write ", path.string(), ": ", what,
                    ". Name a regular file, or one that does not exist yet.");
}

void require_regular(std::string_view op, const fs::path& path, mode_t mode) {
  if (S_ISREG(mode)) return;
  if (S_ISDIR(mode)) no_file(op, path, "Is a directory");
  if (S_ISFIFO(mode)) no_file(op, path, "Is a pipe");
  if (S_ISSOCK(mode)) no_file(op, path, "Is a socket");
  no_file(op, path, "Is a device");
}

/// Links in /proc name the open files of a process, which cannot be replaced.
bool is_in_proc(const Status& link) {
  Status proc{};
  return stat("/proc/self", &proc) == 0 && proc.st_dev == link.st_dev;
}

/// In a directory where all may write and delete only their own files (/tmp), another user can
/// place a link for us to write through. As the kernel does in such directories, only two kinds of
/// links are followed: our own, and those of the directory's owner.
void require_trusted_link(std::string_view op, const fs::path& path, const fs::path& link,
                          const Status& status) {
  constexpr mode_t shared = S_ISVTX | S_IWOTH;
  const fs::path directory = link.has_parent_path() ? link.parent_path() : fs::path(".");
  Status around{};
  if (stat(directory.c_str(), &around) != 0) cannot_write(op, path, errno);
  if ((around.st_mode & shared) != shared || status.st_uid == geteuid() ||
      status.st_uid == around.st_uid)
    return;
  fail<FormatError>(op, "cannot write ", path.string(), ": ", link.string(),
                    " is a link of another user, ", status.st_uid,
                    ", in a directory that all may write to. Remove it, or name another file.");
}

/// Returns the path after all links, and its status if it exists: then it is a regular file.
fs::path behind_links(std::string_view op, const fs::path& path, Status& status, bool& exists) {
  constexpr int most_links = 40;  // as Linux
  fs::path at = path;
  for (int links = 0; links <= most_links; ++links) {
    exists = lstat(at.c_str(), &status) == 0;
    if (!exists && errno != ENOENT) cannot_write(op, path, errno);
    if (!exists) return at;
    if (!S_ISLNK(status.st_mode)) {
      require_regular(op, path, status.st_mode);
      return at;
    }
    if (is_in_proc(status)) no_file(op, path, "Is an open file of a process");
    require_trusted_link(op, path, at, status);
    std::error_code error;
    const fs::path to = fs::read_symlink(at, error);
    if (error) cannot_write(op, path, error.value());
    at = to.is_absolute() ? to : at.parent_path() / to;
  }
  cannot_write(op, path, ELOOP);
}
}  // namespace

Descriptor::~Descriptor() { close(); }

bool Descriptor::close() {
  const int descriptor = std::exchange(descriptor_, -1);
  return descriptor < 0 || ::close(descriptor) == 0;
}

void require_path(std::string_view op, const fs::path& path) {
  if (path.native().find('\0') != std::string::npos)
    fail<FormatError>(op, "not a path: ", in_quotes(path.native(), 200),
                      " has a zero byte. Leave it out.");
}

Descriptor open(const fs::path& path, int flags, unsigned permissions) {
  require_path("open", path);
  Descriptor file(::open(path.c_str(), flags | O_CLOEXEC, permissions));
  if (!file || file.get() > STDERR_FILENO) return file;
  return Descriptor(fcntl(file.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
}

std::ptrdiff_t read_some(const Descriptor& file, void* to, std::size_t size) {
  while (true) {
    const ssize_t got = ::read(file.get(), to, size);
    if (got >= 0 || errno != EINTR) return got;
  }
}

SizeLimitIsAnError::SizeLimitIsAnError() {
  sigset_t pending{};
  sigemptyset(&signal_);
  sigaddset(&signal_, SIGXFSZ);
  pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  pending_before_ = sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ) == 1;
}

SizeLimitIsAnError::~SizeLimitIsAnError() {
  const int error = errno;
  const timespec at_once{};
  if (!pending_before_)
    while (sigtimedwait(&signal_, nullptr, &at_once) == SIGXFSZ) {}
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  errno = error;
}

bool write_all(const Descriptor& file, std::string_view& bytes) {
  const SizeLimitIsAnError limit;
  while (!bytes.empty()) {
    const ssize_t put = ::write(file.get(), bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return false;
    bytes.remove_prefix(std::size_t(put));
  }
  return true;
}

std::string beginning_of_name(const fs::path& path) {
  constexpr std::size_t most = 100;  // bytes: most systems allow 255, some of them 143
  std::string name = path.filename().string();
  if (name.size() <= most) return name;
  std::size_t end = most;
  while (end > most - 4 && (uint8_t(name[end]) & 0xc0) == 0x80) --end;  // not inside a character
  name.resize(end);
  return name;
}

std::string read_text(std::string_view op, const fs::path& path, std::size_t most) {
  require_path(op, path);
  const Descriptor file = open(path, O_RDONLY | O_NONBLOCK);
  Status status{};
  if (!file || fstat(file.get(), &status) != 0)
    fail<FormatError>(op, "cannot read ", path.string(), ": ", std::strerror(errno),
                      ". Check the path.");
  if (!S_ISREG(status.st_mode))
    fail<FormatError>(op, "cannot read ", path.string(), ": it is not a regular file.");
  if (status.st_size < 0 || uint64_t(status.st_size) > most)
    fail<FormatError>(op, path.string(), " has ", status.st_size, " bytes. At most ", most,
                      " make sense.");
  std::string text;
  or_no_memory(op, status.st_size, [&] { text.resize(std::size_t(status.st_size)); });
  std::size_t got = 0;
  while (got < text.size()) {
    const std::ptrdiff_t count = read_some(file, text.data() + got, text.size() - got);
    if (count < 0)
      fail<FormatError>(op, "cannot read ", path.string(), ": ", std::strerror(errno), ".");
    if (count == 0) break;
    got += std::size_t(count);
  }
  text.resize(got);
  return text;
}

Descriptor open_to_append(std::string_view op, const fs::path& path) {
  require_path(op, path);
  Status status{};
  // Before the file is opened: opening alone may wait for a reader, or act on a device.
  if (stat(path.c_str(), &status) == 0) require_regular(op, path, status.st_mode);
  Descriptor file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_NONBLOCK | O_NOCTTY);
  if (!file || fstat(file.get(), &status) != 0) cannot_write(op, path, errno);
  require_regular(op, path, status.st_mode);
  return file;
}

Replacement::Replacement(std::string_view op, const fs::path& path, Durable durable)
    : op_(op), path_(path), durable_(durable) {
  require_path(op, path);
  Status before{};
  bool exists = false;
  target_ = behind_links(op_, path_, before, exists);
  // rename() checks only the directory's permissions; respect a read-only file as well.
  if (exists && faccessat(AT_FDCWD, target_.c_str(), W_OK, AT_EACCESS) != 0) fail_with(errno);
  constexpr mode_t all = 07777, usual = 0666, rights = 0777;
  static std::atomic<uint64_t> counter{0};
  do {  // a crashed process with our process id may have left a file
    temporary_ =
        target_.parent_path() / (beginning_of_name(target_) + '.' + std::to_string(getpid()) + '-' +
                                 std::to_string(++counter) + ".tmp");
    file_ = open(temporary_, O_WRONLY | O_CREAT | O_EXCL, exists ? before.st_mode & rights : usual);
  } while (!file_ && errno == EEXIST);
  if (!file_) {
    temporary_.clear();
    fail_with(errno);
  }
  if (!exists) return;
  // Only root may keep another owner; for other users the file becomes theirs, as with any editor.
  static_cast<void>(fchown(file_.get(), before.st_uid, before.st_gid) == 0);
  static_cast<void>(fchmod(file_.get(), before.st_mode & all) == 0);
}

Replacement::~Replacement() {
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

void Replacement::fail_with(int error) const { cannot_write(op_, path_, error); }

void Replacement::write(const void* data, std::size_t size) {
  std::string_view bytes(static_cast<const char*>(data), size);
  if (!write_all(file_, bytes)) fail_with(errno);
}

void Replacement::commit() {
  if (durable_ == Durable::yes && fsync(file_.get()) != 0) fail_with(errno);
  if (!file_.close()) fail_with(errno);
  if (rename(temporary_.c_str(), target_.c_str()) != 0) fail_with(errno);
  temporary_.clear();
  if (durable_ == Durable::no) return;
  // Syncs the new name as well. Not every file system can: the file is complete and visible anyway.
  const fs::path directory = target_.has_parent_path() ? target_.parent_path() : fs::path(".");
  const Descriptor parent = open(directory, O_RDONLY | O_DIRECTORY);
  if (parent) fsync(parent.get());
}

void replace(std::string_view op, const fs::path& path, std::string_view bytes, Durable durable) {
  Replacement file(op, path, durable);
  file.write(bytes);
  file.commit();
}

void require_replaceable(std::string_view op, const fs::path& path) {
  const Replacement file(op, path, Durable::no);
}

void make_directories(std::string_view op, const fs::path& path) {
  require_path(op, path);
  std::error_code error, ignored;
  fs::create_directories(path, error);
  if (!error && !fs::is_directory(path, ignored))
    error = std::make_error_code(std::errc::not_a_directory);
  if (error)
    fail<FormatError>(op, "cannot make the directory ", path.string(), ": ", error.message(),
                      ". Name one that can be made.");
}

}  // namespace halftone::files
