// Loggers: what a training writes down, and in which files.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <halftone/core/files.h>
#include <halftone/train/checkpoint.h>
#include <halftone/train/progress.h>

namespace halftone::train {

// Text for people: progress, notes, tables. A full, closed or vanished display must not stop a
// training, so these functions never fail and never cause a SIGPIPE.

/// Writes a text and flushes `to`. Drops bytes that the system does not accept.
void print_for_people(std::FILE* to, std::string_view text);

// The outputs of a training's numbers. One call writes one record of named numbers; a caller may
// pass the same record to several loggers. Readers of the files group names by prefix:
// "train/loss".

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

/// An output of records, such as a file. Use it from one thread. Calls of log() write to the file
/// only about once a second; after flush(), all records are in the file.
class Logger {
 public:
  Logger() = default;
  virtual ~Logger() = default;
  Logger(const Logger&) = delete;
  Logger& operator=(const Logger&) = delete;

  /// Logs one record with the present time. Throws UsageError, and logs nothing, for names that are
  /// empty, not UTF-8, repeated or with control characters, and for "step" and "time", which every
  /// record has. Throws the FormatError of flush() if this call writes.
  void log(int64_t step, std::span<const NamedNumber> numbers);
  void log(int64_t step, std::initializer_list<NamedNumber> numbers) {
    log(step, std::span(numbers.begin(), numbers.size()));
  }
  /// Logs a record that has its time, so that several loggers can get the same record.
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

// The output of a running training: named numbers, one row per step, for loggers, and lines for
// people. The last number of each name stays available, also after a resume.

class Records {
 public:
  /// Adds a number to the present row. The last of equal names counts. See check_log_name().
  void log(std::string_view name, double value, int64_t step);
  /// Returns the last logged number of a name; nullopt if there is none.
  std::optional<double> last(std::string_view name) const;
  std::map<std::string, double> last() const;  // of every name
  /// Returns *last(name). If there is none, throws a UsageError that suggests the nearest name.
  double metric(std::string_view name) const;

  std::vector<std::shared_ptr<Logger>> loggers{};  // outputs of the rows
  /// Passes the row, if it has numbers, to every logger, and begins the next one.
  void write(int64_t step);
  void flush();

  std::optional<ProgressBar> progress{};  // absent: no progress bar
  bool silent = false;                    // true: this process writes nothing for people
  /// Writes a line for people above the progress bar; does nothing without one.
  void note(std::string_view text);
  /// Writes a note that must also be visible without a progress bar.
  void tell(const std::string& text);

  /// Writes the last numbers into a checkpoint's state and, if `with_row`, the present row.
  void save(CheckpointState& state, bool with_row = false) const;
  void restore(const CheckpointState& state);

 private:
  struct Logged {
    double value;
    int64_t step;
  };
  std::vector<std::pair<std::string, double>> row_{};
  std::map<std::string, Logged, std::less<>> last_{};
};

// A file that only grows. Bytes are collected in memory and written together when there are many,
// when a second has passed, or at flush(). If a write fails, the unwritten bytes stay in memory, so
// nothing is written twice.

class LogFile {
 public:
  enum class Tail { keep, cut_broken_line };

  /// Opens the file for appending, and makes it if it does not exist. cut_broken_line removes the
  /// bytes after the last line break: a line that a crash left unfinished. Throws FormatError "[op]
  /// ..." for a directory that does not exist, a path that is not a regular file, and missing
  /// permissions.
  LogFile(std::string op, std::filesystem::path path, Tail tail);
  /// Writes the waiting bytes as far as possible. Only flush() reports errors.
  ~LogFile();
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;

  /// Adds bytes; writes if many wait or a second has passed. `seconds`: the present time.
  void append(std::string_view bytes, double seconds);
  /// Writes all waiting bytes. Throws FormatError if the operating system does not accept them.
  void flush();
  /// Replaces the file's content in one step (files::replace). On an error the old content remains.
  void replace(std::string_view content);
  /// Returns the whole content, including bytes still in memory.
  std::string read_all();

  const std::filesystem::path& path() const { return path_; }

 private:
  bool write_waiting();  // returns false, and sets errno, if the system refuses
  void cut_broken_line();

  std::string op_;
  std::filesystem::path path_;
  files::Descriptor file_;
  std::string waiting_{};
  double written_at_ = 0;
};

}  // namespace halftone::train

// Writes TensorBoard's event files without a library. A file is a sequence of TFRecords, each
//   u64 length | u32 masked CRC of the length | bytes | u32 masked CRC of the bytes
// (little endian; tensorflow/core/lib/io/record_writer.h; the CRC is Castagnoli's, RFC 3720, B.4),
// whose bytes are Event messages (tensorflow/core/util/event.proto, framework/summary.proto) in the
// wire format of protocol buffers (protobuf.dev/programming-guides/encoding).

namespace halftone::train::event_file {

namespace detail {
constexpr std::array<uint32_t, 256> crc_table = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit)
      remainder = remainder >> 1 ^ (remainder & 1 ? 0x82f63b78u : 0u);
    table[byte] = remainder;
  }
  return table;
}();

template <class Word> void append_little_endian(std::string& to, Word word) {
  for (std::size_t i = 0; i < sizeof word; ++i) to += char(word >> (8 * i) & 0xff);
}
}  // namespace detail

/// Returns the CRC-32C of the bytes.
constexpr uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (const char c : bytes)
    crc = crc >> 8 ^ detail::crc_table[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  return ~crc;
}
/// Returns the CRC-32C of the bytes as TFRecords store it: rotated, plus a constant.
constexpr uint32_t masked_crc(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes);
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

// --- protocol buffers: a key is (field number << 3 | wire type)

inline void append_varint(std::string& to, uint64_t value) {
  for (; value >= 0x80; value >>= 7) to += char(value | 0x80);
  to += char(value);
}
inline void append_integer(std::string& to, int field, int64_t value) {
  append_varint(to, uint64_t(field) << 3);
  append_varint(to, uint64_t(value));
}
inline void append_double(std::string& to, int field, double value) {
  append_varint(to, uint64_t(field) << 3 | 1);
  detail::append_little_endian(to, std::bit_cast<uint64_t>(value));
}
inline void append_float(std::string& to, int field, float value) {
  append_varint(to, uint64_t(field) << 3 | 5);
  detail::append_little_endian(to, std::bit_cast<uint32_t>(value));
}
/// Appends a string or a nested message.
inline void append_bytes(std::string& to, int field, std::string_view bytes) {
  append_varint(to, uint64_t(field) << 3 | 2);
  append_varint(to, bytes.size());
  to += bytes;
}

/// Returns the TFRecord that contains the bytes.
inline std::string framed(std::string_view bytes) {
  std::string record;
  detail::append_little_endian(record, uint64_t(bytes.size()));
  detail::append_little_endian(record, masked_crc(record));
  record += bytes;
  detail::append_little_endian(record, masked_crc(bytes));
  return record;
}

}  // namespace halftone::train::event_file

// Three file formats for a training's numbers. A resumed training can open each file again and
// append. All throw FormatError if a file cannot be written or is not a regular file (a pipe, a
// device). A call takes microseconds.

namespace halftone::train {

/// Writes comma-separated values (RFC 4180 quoting). Columns: step, time, then one per name, in the
/// order of appearance. A cell is empty if the record lacks the name. A new name adds its column to
/// the whole file, which is rewritten under a temporary name and renamed: readers never see an
/// incomplete file. NaN and infinities are nan, inf, -inf. Text goes to PATH.txt.
class CsvLogger : public Logger {
 public:
  /// Makes the file, or appends to one that begins with "step,time", after cutting an unfinished
  /// last line. Throws FormatError for a file that begins with anything else.
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

/// Writes a JSON object per line: {"step": 3, "time": 1700000000.25, "loss": 0.5}. NaN and
/// infinities, which JSON numbers cannot express, are the strings "NaN", "Infinity" and
/// "-Infinity". Text: {"step": 0, "time": .., "text": {name: text}}. Opening cuts an unfinished
/// last line.
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

/// Writes TensorBoard's event files, for `tensorboard --logdir DIRECTORY`. Numbers are rounded to
/// f32; text appears on the TEXT page. Each logger begins a new file in the directory, as
/// TensorBoard expects; the files together are the run.
class TensorBoardLogger : public Logger {
 public:
  /// Makes the directory, but not its parents. Throws FormatError if the system refuses.
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
