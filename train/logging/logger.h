// The outputs of a training's numbers. One call writes one record of named numbers; a caller may
// pass the same record to several loggers. Readers of the files group names by prefix:
// "train/loss".
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>

namespace halftone::train {

struct NamedNumber {
  std::string_view name;
  double value;
};

struct LogRecord {
  int64_t step;
  double seconds;  // since 1970
  std::span<const NamedNumber> numbers;
};

/// Throws UsageError for a name that no record can have: an empty name, "step" or "time" (which
/// every record has), a name with control characters, or one that is not UTF-8.
void check_log_name(std::string_view name);

/// Use it from one thread. Only flush() guarantees that records are in the file; loggers also write
/// by themselves about once a second while they are called.
class Logger {
 public:
  Logger() = default;
  virtual ~Logger() = default;
  Logger(const Logger&) = delete;
  Logger& operator=(const Logger&) = delete;

  /// Logs one record with the present time. Throws UsageError, and logs nothing, for names that are
  /// empty, not UTF-8, repeated or with control characters, and for "step" and "time", which every
  /// record has. Throws FormatError as flush(), if this call writes.
  void log(int64_t step, std::span<const NamedNumber> numbers);
  void log(int64_t step, std::initializer_list<NamedNumber> numbers) {
    log(step, std::span(numbers.begin(), numbers.size()));
  }
  /// Logs a record with the caller's time, for example one record in several loggers.
  void log(const LogRecord& record);
  /// Logs text, such as hyperparameters: any UTF-8. Throws UsageError for a bad name or text.
  void log_text(int64_t step, std::string_view name, std::string_view text);
  /// Passes all records to the operating system. Throws FormatError if it does not accept them (a
  /// full disk). The unwritten bytes stay in memory, and a later call continues with them.
  virtual void flush() = 0;

 private:
  virtual void write(const LogRecord& record) = 0;
  virtual void write_text(int64_t step, double seconds, std::string_view name,
                          std::string_view text) = 0;
};

}  // namespace halftone::train
