// A file that only grows. Bytes are collected in memory and written together when there are many,
// when a second has passed, or at flush(). If a write fails, the unwritten bytes stay in memory, so
// nothing is written twice.
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

  /// Opens the file for appending, and makes it if it does not exist. cut_broken_line removes the
  /// bytes after the last line break: a line that a crash left unfinished. Throws FormatError, in
  /// the name of `op`, for a directory that does not exist, a path that is not a regular file, and
  /// missing permissions.
  LogFile(std::string op, std::filesystem::path path, Tail tail);
  /// Writes as much as possible. Only flush() reports errors.
  ~LogFile();
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;

  /// `seconds`: the present time, to know when the last write was.
  void append(std::string_view bytes, double seconds);
  /// Throws FormatError if the operating system does not accept all bytes.
  void flush();
  /// Replaces the file's content in one step (files::replace). On an error the old content remains.
  void replace(std::string_view content);
  /// Returns the whole content, including bytes still in memory.
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
