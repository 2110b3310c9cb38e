// A file to which lines are appended: unwritten bytes wait, and a broken last line is cut.
#include <halftone/train/logging/log_file.h>

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <unistd.h>

#include <halftone/core/error.h>

namespace halftone::train {

namespace {

constexpr std::size_t most_waiting = 64 << 10;
constexpr double longest_wait = 1;  // seconds
}  // namespace

LogFile::LogFile(std::string op, std::filesystem::path path, Tail tail)
    : op_(std::move(op)), path_(std::move(path)), file_(files::open_to_append(op_, path_)) {
  if (tail == Tail::cut_broken_line) cut_broken_line();
}

LogFile::~LogFile() { write_waiting(); }

bool LogFile::write_waiting() {
  std::string_view left = waiting_;
  const bool all = files::write_all(file_, left);
  const int error = errno;
  waiting_.erase(0, waiting_.size() - left.size());
  errno = error;
  return all;
}

void LogFile::cut_broken_line() {
  const std::string content = read_all();
  const std::size_t whole = content.find_last_of('\n') + 1;  // npos + 1 is 0
  if (whole < content.size() && ::ftruncate(file_.get(), off_t(whole)) != 0)
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
  if (!write_waiting())
    fail<FormatError>(op_, "cannot write to ", path_.string(), ": ", std::strerror(errno), ". ",
                      waiting_.size(), " bytes wait in memory; free the disk and flush again.");
}

std::string LogFile::read_all() {
  const files::Descriptor reader = files::open(path_, O_RDONLY);
  std::string content;
  char block[1 << 16];
  std::ptrdiff_t got = reader ? 1 : -1;
  while (reader && (got = files::read_some(reader, block, sizeof block)) > 0)
    content.append(block, std::size_t(got));
  if (got < 0)
    fail<FormatError>(op_, "cannot read ", path_.string(), ": ", std::strerror(errno),
                      ". To go on with a log, the file must be readable.");
  return content + waiting_;
}

void LogFile::replace(std::string_view content) {
  files::replace(op_, path_, content, files::Durable::no);
  waiting_.clear();
  file_ = files::open_to_append(op_, path_);
}

}  // namespace halftone::train
