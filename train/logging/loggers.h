// Three files for a training's numbers. All may be opened again by a resumed run and go on where
// they ended; all throw FormatError where a file cannot be written, or is none (a pipe, a device).
// A call costs microseconds.
#pragma once

#include <string>
#include <vector>

#include <halftone/train/logging/log_file.h>
#include <halftone/train/logging/logger.h>

namespace halftone::train {

/// Comma-separated values (RFC 4180 quoting): the columns step, time, then one per name, in the
/// order of appearance; a cell is empty where a record lacks the name. A name that is new later
/// adds its column to the whole file, which is rewritten beside itself and renamed: readers never
/// see half of it. NaN and infinities are nan, inf, -inf. Text goes to PATH.txt.
class CsvLogger : public Logger {
 public:
  /// Goes on with a file that has this header; an unfinished last line is cut. Throws FormatError
  /// for a file that begins otherwise.
  explicit CsvLogger(const std::filesystem::path& path);
  void flush() override;

 private:
  void write(const LogRecord& record) override;
  void write_text(int64_t step, double seconds, std::string_view name,
                  std::string_view text) override;
  void add_columns(const LogRecord& record);

  LogFile file_;
  bool has_header_ = false;
  std::vector<std::string> names_{};  // of the columns behind step and time
  std::string line_{};                // kept for its memory
};

/// One JSON object a line: {"step": 3, "time": 1700000000.25, "loss": 0.5}. What JSON has no
/// numbers for are the strings "NaN", "Infinity" and "-Infinity". Text: {"step": 0, "time": ..,
/// "text": {name: text}}. An unfinished last line is cut.
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
/// rounded to f32 there; text appears on its TEXT page. Each logger begins a file of its own in the
/// directory, as TensorBoard wants it; together they are the run.
class TensorBoardLogger : public Logger {
 public:
  /// Makes the directory, though not its parents. Throws FormatError if it cannot.
  explicit TensorBoardLogger(const std::filesystem::path& directory);
  void flush() override { file_.flush(); }
  /// The event file.
  const std::filesystem::path& path() const { return file_.path(); }

 private:
  void write(const LogRecord& record) override;
  void write_text(int64_t step, double seconds, std::string_view name,
                  std::string_view text) override;

  LogFile file_;
};

}  // namespace halftone::train
