#include <halftone/train/log_file.h>

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <halftone/core/error.h>

namespace halftone::train {

namespace {

constexpr std::size_t most_waiting = 64 << 10;
constexpr double longest_wait = 1;  // seconds

/// Writes from the front of `bytes` until they are out; false if the system refuses, with errno.
bool write_some(int file, std::string& bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t wrote = ::write(file, bytes.data() + done, bytes.size() - done);
    if (wrote > 0) done += std::size_t(wrote);
    else if (errno != EINTR) break;
  }
  const bool all = done == bytes.size();
  const int error = errno;
  bytes.erase(0, done);
  errno = error;
  return all;
}

}  // namespace

LogFile::LogFile(std::string op, std::filesystem::path path, Tail tail)
    : op_(std::move(op)), path_(std::move(path)) {
  open();
  try {
    if (tail == Tail::cut_broken_line) cut_broken_line();
  } catch (...) {
    ::close(file_);
    throw;
  }
}

LogFile::~LogFile() {
  write_some(file_, waiting_);
  ::close(file_);
}

void LogFile::open() {
  file_ = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  if (file_ < 0)
    fail<FormatError>(op_, "cannot write ", path_.string(), ": ", std::strerror(errno),
                      ". Name a file in a directory that exists and is writable.");
}

void LogFile::cut_broken_line() {
  struct stat status {};
  if (::fstat(file_, &status) != 0 || !S_ISREG(status.st_mode) || status.st_size == 0) return;
  const std::string content = read_all();
  const std::size_t whole = content.find_last_of('\n') + 1;  // npos + 1 is 0
  if (whole < content.size() && ::ftruncate(file_, off_t(whole)) != 0)
    fail<FormatError>(op_, "cannot cut the broken last line of ", path_.string(), ": ",
                      std::strerror(errno), ". Cut it by hand.");
}

void LogFile::append(std::string_view bytes, double seconds) {
  waiting_ += bytes;
  if (waiting_.size() < most_waiting && seconds - written_at_ < longest_wait &&
      seconds >= written_at_)
    return;
  written_at_ = seconds;
  flush();
}

void LogFile::flush() {
  if (!write_some(file_, waiting_))
    fail<FormatError>(op_, "cannot write to ", path_.string(), ": ", std::strerror(errno), ". ",
                      waiting_.size(), " bytes wait in memory; free the disk and flush again.");
}

std::string LogFile::read_all() {
  if (!std::filesystem::is_regular_file(path_))
    fail<FormatError>(op_, path_.string(), " is no regular file: what was written cannot be read ",
                      "again. Give every record the same names, or log to a file.");
  const int reader = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  std::string content;
  char block[1 << 16];
  ssize_t got = reader < 0 ? -1 : 1;
  while (reader >= 0 && (got = ::read(reader, block, sizeof block)) != 0)
    if (got > 0) content.append(block, std::size_t(got));
    else if (errno != EINTR) break;
  const int error = errno;
  if (reader >= 0) ::close(reader);
  if (got < 0)
    fail<FormatError>(op_, "cannot read ", path_.string(), ": ", std::strerror(error),
                      ". To go on with a log, the file must be readable.");
  return content + waiting_;
}

void LogFile::replace(std::string_view content) {
  const std::filesystem::path target = std::filesystem::canonical(path_),  // through links
      beside = target.string() + ".new";
  const int file = ::open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  std::string bytes(content);
  const bool written = file >= 0 && write_some(file, bytes);
  int error = written ? 0 : errno;
  if (file >= 0 && ::close(file) != 0 && error == 0) error = errno;
  if (error == 0 && ::rename(beside.c_str(), target.c_str()) != 0) error = errno;
  if (error != 0) {
    ::unlink(beside.c_str());
    fail<FormatError>(op_, "cannot rewrite ", path_.string(), ": ", std::strerror(error),
                      ". The file is as it was; free the disk and log again.");
  }
  ::close(file_);
  waiting_.clear();
  open();
}

}  // namespace halftone::train
