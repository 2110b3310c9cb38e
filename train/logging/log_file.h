// A file that only grows: bytes gather in memory and go out in one piece when there are many, when
// a second has passed, or when asked. A write that fails keeps what is left, so nothing appears
// twice.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

#include <halftone/core/files.h>

namespace halftone::train {

class LogFile {
 public:
  enum class Tail { keep, cut_broken_line };

  /// Opens for appending, makes the file if there is none. cut_broken_line removes what follows the
  /// last line break: a line that a crash left unfinished. Throws FormatError, in the name of `op`,
  /// for a directory that does not exist, a path that is no regular file, and missing rights.
  LogFile(std::string op, std::filesystem::path path, Tail tail);
  /// Writes what it can. Errors are flush()'s to tell.
  ~LogFile();
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;

  /// `seconds`: the present time, to know when the last write was.
  void append(std::string_view bytes, double seconds);
  /// Throws FormatError if the operating system does not take everything.
  void flush();
  /// The file becomes `content` in one step (files::replace). On an error the old one remains.
  void replace(std::string_view content);
  /// Everything in it, with what is still in memory.
  std::string read_all();

  const std::filesystem::path& path() const { return path_; }

 private:
  bool write_waiting();  // false if the system refuses, with errno
  void cut_broken_line();

  std::string op_;
  std::filesystem::path path_;
  files::Descriptor file_;
  std::string waiting_{};
  double written_at_ = 0;
};

}  // namespace halftone::train
