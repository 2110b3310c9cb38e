// Three file formats for a training's numbers. A resumed training can open each file again and
// append. All throw FormatError if a file cannot be written or is not a regular file (a pipe, a
// device). A call takes microseconds.
#pragma once

#include <string>
#include <vector>

#include <halftone/train/logging/log_file.h>
#include <halftone/train/logging/logger.h>

namespace halftone::train {

/// Comma-separated values (RFC 4180 quoting). Columns: step, time, then one per name, in the order
/// of appearance. A cell is empty if the record lacks the name. A new name adds its column to the
/// whole file, which is rewritten under a temporary name and renamed: readers never see an
/// incomplete file. NaN and infinities are nan, inf, -inf. Text goes to PATH.txt.
class CsvLogger : public Logger {
 public:
  /// Appends to a file with this header; cuts an unfinished last line. Throws FormatError for a
  /// file that begins with anything else.
  explicit CsvLogger(const std::filesystem::path& path);
  void flush() override;

 private:
  void write(const LogRecord& record) override;
  void write_text(int64_t step, double seconds, std::string_view name,
                  std::string_view text) override;
  void add_columns(const LogRecord& record);

  LogFile file_;
  bool has_header_ = false;
  std::vector<std::string> names_{};  // of the columns after step and time
  std::string line_{};                // reused, to keep its memory
};

/// One JSON object per line: {"step": 3, "time": 1700000000.25, "loss": 0.5}. NaN and infinities,
/// which JSON numbers cannot express, are the strings "NaN", "Infinity" and "-Infinity". Text:
/// {"step": 0, "time": .., "text": {name: text}}. An unfinished last line is cut.
class JsonLinesLogger : public Logger {
 public:
  explicit JsonLinesLogger(const std::filesystem::path& path);
  void flush() override { file_.flush(); }

 private:
  void write(const LogRecord& record) override;
  void write_text(int64_t step, double seconds, std::string_view name,
                  std::string_view text) override;

  LogFile file_;
  std::string line_{};
};

/// TensorBoard's event files (event_file.h), for `tensorboard --logdir DIRECTORY`. Numbers are
/// rounded to f32; text appears on the TEXT page. Each logger begins a new file in the directory,
/// as TensorBoard expects; the files together are the run.
class TensorBoardLogger : public Logger {
 public:
  /// Makes the directory, but not its parents. Throws FormatError if it cannot.
  explicit TensorBoardLogger(const std::filesystem::path& directory);
  void flush() override { file_.flush(); }
  /// Returns the path of the event file.
  const std::filesystem::path& path() const { return file_.path(); }

 private:
  void write(const LogRecord& record) override;
  void write_text(int64_t step, double seconds, std::string_view name,
                  std::string_view text) override;

  LogFile file_;
};

}  // namespace halftone::train
