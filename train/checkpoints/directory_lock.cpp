// The file is never removed: if one process removed it while another waits to open it, the other
// would lock a file without a name.
#include <halftone/train/checkpoints/directory_lock.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <string>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <halftone/core/error.h>

namespace halftone::train {

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
