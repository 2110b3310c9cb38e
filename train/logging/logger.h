// Where a training's numbers go: records of named numbers, one per call, which a caller may give to
// several loggers at once. Names are what the files' readers group by: "train/loss".
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

/// Throws UsageError for a name that no record can have: empty, "step" or "time", which every
/// record has, with control characters, or not UTF-8.
void check_log_name(std::string_view name);

/// Calls belong to one thread. Nothing is certain to be in the file before flush(), though loggers
/// write on their own about once a second while they are called.
class Logger {
 public:
  Logger() = default;
  virtual ~Logger() = default;
  Logger(const Logger&) = delete;
  Logger& operator=(const Logger&) = delete;

  /// One record, with the present time. Throws UsageError, and logs nothing, for names that are
  /// empty, not UTF-8, twice there or with control characters, and for "step" and "time", which
  /// every record has; FormatError as flush(), if this call is one that writes.
  void log(int64_t step, std::span<const NamedNumber> numbers);
  void log(int64_t step, std::initializer_list<NamedNumber> numbers) {
    log(step, std::span(numbers.begin(), numbers.size()));
  }
  /// The same with a time of the caller's: one record for several loggers.
  void log(const LogRecord& record);
  /// Text beside the numbers, such as hyper-parameters: any UTF-8. Throws UsageError for a bad name
  /// or text.
  void log_text(int64_t step, std::string_view name, std::string_view text);
  /// Hands everything to the operating system. Throws FormatError if it does not take it (a full
  /// disk); what is left stays in memory, and a later call goes on where this one stopped.
  virtual void flush() = 0;

 private:
  virtual void write(const LogRecord& record) = 0;
  virtual void write_text(int64_t step, double seconds, std::string_view name,
                          std::string_view text) = 0;
};

}  // namespace halftone::train
