// Text for people, records and loggers.
#include <halftone/train/loggers.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include <halftone/core/error.h>
#include <halftone/core/files.h>
#include <halftone/core/named_tensors.h>
#include <halftone/data/unicode.h>
#include <halftone/train/metrics.h>

namespace halftone::train {

// A write to a pipe without a reader sends SIGPIPE to the writing thread. The thread blocks it
// during the write and removes it if it came; the process's own handler stays as it is.

void print_for_people(std::FILE* to, std::string_view text) {
  const files::SizeLimitIsAnError limit;  // the output may be a file
  sigset_t pipe, before, pending;
  sigemptyset(&pipe), sigemptyset(&pending);
  sigaddset(&pipe, SIGPIPE);
  sigpending(&pending);
  const bool waited = sigismember(&pending, SIGPIPE) == 1;
  pthread_sigmask(SIG_BLOCK, &pipe, &before);
  static_cast<void>(std::fwrite(text.data(), 1, text.size(), to));
  static_cast<void>(std::fflush(to));
  constexpr timespec at_once{};
  if (!waited) sigtimedwait(&pipe, nullptr, &at_once);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

// Writes one row, with one time, to all loggers. A checkpoint stores each number with its step.

void Records::log(std::string_view name, double value, int64_t step) {
  check_log_name(name);
  const auto same = std::ranges::find(row_, name, &std::pair<std::string, double>::first);
  if (same != row_.end()) same->second = value;
  else row_.emplace_back(name, value);
  last_.insert_or_assign(std::string(name), Logged{value, step});
}

std::optional<double> Records::last(std::string_view name) const {
  const auto found = last_.find(name);
  return found == last_.end() ? std::nullopt : std::optional(found->second.value);
}

std::map<std::string, double> Records::last() const {
  std::map<std::string, double> all;
  for (const auto& [name, logged] : last_) all[name] = logged.value;
  return all;
}

double Records::metric(std::string_view name) const {
  if (const auto value = last(name)) return *value;
  std::vector<std::string_view> known;
  for (const auto& [other, logged] : last_) known.push_back(other);
  fail_unknown_name("Trainer", "metric", name, known);
}

void Records::write(int64_t step) {
  if (row_.empty()) return;
  const auto row = std::exchange(row_, {});
  std::vector<NamedNumber> numbers;
  numbers.reserve(row.size());
  for (const auto& [name, value] : row) numbers.push_back({name, value});
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  for (const auto& logger : loggers)
    logger->log({step, std::chrono::duration<double>(now).count(), numbers});
}

void Records::flush() {
  for (const auto& logger : loggers) logger->flush();
}

void Records::note(std::string_view text) {
  if (progress) progress->note(text);
}

void Records::tell(const std::string& text) {
  if (silent) return;
  if (progress) progress->note(text);
  else print_for_people(stderr, text + '\n');
}

namespace {
/// Returns a name whose order is that of the row.
std::string name_in_row(std::size_t place) {
  std::string digits = std::to_string(place);
  return "state.row." + std::string(6 - std::min<std::size_t>(digits.size(), 6), '0') + digits +
         '.';
}
}  // namespace

void Records::save(CheckpointState& state, bool with_row) const {
  for (std::size_t i = 0; with_row && i < row_.size(); ++i)
    state.numbers[name_in_row(i) + row_[i].first] = row_[i].second;
  for (const auto& [name, logged] : last_) {
    // Only numbers measured at this step may rank this checkpoint among the best.
    if (logged.step == state.step) state.numbers[name] = logged.value;
    state.numbers["state.metric.value." + name] = logged.value;
    state.numbers["state.metric.step." + name] = double(logged.step);
  }
}

void Records::restore(const CheckpointState& state) {
  row_.clear();  // a fit() may begin again
  for (const auto& [name, value] : part_of(state.numbers, "state.row."))
    if (const std::size_t point = name.find('.'); point != std::string::npos)
      row_.emplace_back(name.substr(point + 1), value);
  for (const auto& [name, value] : part_of(state.numbers, "state.metric.value."))
    last_[name] = {value, count_in(state.numbers, "state.metric.step." + name)};
}

// Checks names, so that all file formats can hold them.

namespace {

double now() {
  const auto since_1970 = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(since_1970).count();
}

bool is_utf8(std::string_view text) {
  for (std::size_t at = 0, length; at < text.size(); at += length)
    if (length = data::code_point_at(text, at).length; length == 0) return false;
  return true;
}

}  // namespace

void check_log_name(std::string_view name) {
  if (name.empty() || name == "step" || name == "time")
    fail<UsageError>("log", "'", name, "' is not a valid name for a number. Choose another one.");
  for (const char c : name)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
      fail<UsageError>("log", "the name '", name, "' has a control character. Leave it out.");
  if (!is_utf8(name)) fail<UsageError>("log", "the name '", name, "' is not UTF-8. Convert it.");
}

void Logger::log(int64_t step, std::span<const NamedNumber> numbers) {
  log(LogRecord{step, now(), numbers});
}

void Logger::log(const LogRecord& record) {
  for (std::size_t i = 0; i < record.numbers.size(); ++i) {
    check_log_name(record.numbers[i].name);
    for (std::size_t j = 0; j < i; ++j)  // a loop over a few names is faster than a set
      if (record.numbers[i].name == record.numbers[j].name)
        fail<UsageError>("log", "'", record.numbers[i].name, "' occurs twice. Log it once.");
  }
  write(record);
}

void Logger::log_text(int64_t step, std::string_view name, std::string_view text) {
  check_log_name(name);
  if (!is_utf8(text)) fail<UsageError>("log", "the text '", name, "' is not UTF-8. Convert it.");
  write_text(step, now(), name, text);
}

// A file to which lines are appended: unwritten bytes wait, and a broken last line is cut.

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

// CSV and JSON lines. Numbers have the fewest digits that read back to the same f64.

namespace {

template <class Number> void append_number(std::string& line, Number value) {
  char digits[32];
  line.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

// --- CSV

void append_cell(std::string& line, double value) {
  if (std::isnan(value)) line += "nan";  // without a possible sign
  else append_number(line, value);
}

std::string csv_quoted(std::string_view name) {
  if (name.find_first_of(",\"") == std::string_view::npos) return std::string(name);
  std::string quoted = "\"";
  for (const char c : name) quoted.append(c == '"' ? 2 : 1, c);
  return quoted + '"';
}

/// Splits a header, which has no line breaks inside cells.
std::vector<std::string> csv_cells(std::string_view line) {
  std::vector<std::string> cells(1);
  bool quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const bool doubled = quoted && line.substr(i, 2) == "\"\"";
    if (line[i] == '"' && !doubled) quoted = !quoted;
    else if (line[i] == ',' && !quoted) cells.emplace_back();
    else cells.back() += line[i], i += doubled;
  }
  return cells;
}

std::string header_of(const std::vector<std::string>& names) {
  std::string header = "step,time";
  for (const std::string& name : names) header += ',' + csv_quoted(name);
  return header + '\n';
}

/// Returns the content with another header, and `more` empty cells at the end of every row.
std::string widened(std::string_view old, const std::vector<std::string>& names, std::size_t more) {
  std::string content = header_of(names);
  for (std::size_t at = old.find('\n') + 1, end; at < old.size(); at = end + 1) {
    end = old.find('\n', at);
    content.append(old.substr(at, end - at)).append(more, ',') += '\n';
  }
  return content;
}

// --- JSON

std::string json_quoted(std::string_view text) { return nlohmann::json(text).dump(); }

void append_json(std::string& line, double value) {
  if (value == 0 && std::signbit(value)) line += "-0.0";  // "-0" would be read as an integer
  else if (std::isfinite(value)) append_number(line, value);
  else line += std::isnan(value) ? "\"NaN\"" : value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
}

void begin_object(std::string& line, int64_t step, double seconds) {
  line = "{\"step\": ";
  append_number(line, step);
  line += ", \"time\": ";
  append_json(line, seconds);
}

}  // namespace

CsvLogger::CsvLogger(const std::filesystem::path& path)
    : file_("CsvLogger", path, LogFile::Tail::cut_broken_line) {
  const std::string content = file_.read_all();
  if (content.empty()) return;
  names_ = csv_cells(std::string_view(content).substr(0, content.find('\n')));
  if (names_.size() < 2 || names_[0] != "step" || names_[1] != "time")
    fail<FormatError>("CsvLogger", path.string(),
                      " does not begin with the columns step and time. Name a new file.");
  names_.erase(names_.begin(), names_.begin() + 2);
  has_header_ = true;
}

void CsvLogger::flush() { file_.flush(); }

void CsvLogger::add_columns(const LogRecord& record) {
  std::vector<std::string> names = names_;
  for (const NamedNumber& number : record.numbers)
    if (std::ranges::find(names, number.name) == names.end()) names.emplace_back(number.name);
  if (!has_header_) file_.append(header_of(names), record.seconds);
  else file_.replace(widened(file_.read_all(), names, names.size() - names_.size()));
  has_header_ = true;
  names_ = std::move(names);
}

void CsvLogger::write(const LogRecord& record) {
  const auto is_column = [this](const NamedNumber& number) {
    return std::ranges::find(names_, number.name) != names_.end();
  };
  if (!has_header_ || !std::ranges::all_of(record.numbers, is_column)) add_columns(record);
  line_.clear();
  append_number(line_, record.step);
  line_ += ',';
  append_cell(line_, record.seconds);
  for (const std::string& name : names_) {
    line_ += ',';
    const auto found = std::ranges::find(record.numbers, name, &NamedNumber::name);
    if (found != record.numbers.end()) append_cell(line_, found->value);
  }
  line_ += '\n';
  file_.append(line_, record.seconds);
}

void CsvLogger::write_text(int64_t step, double seconds, std::string_view name,
                           std::string_view text) {
  // Text is rare, so the file is opened for this one call.
  LogFile texts("CsvLogger", file_.path().string() + ".txt", LogFile::Tail::keep);
  texts.append("step " + std::to_string(step) + ", " + std::string(name) + ":\n" +
                   std::string(text) + "\n\n",
               seconds);
  texts.flush();
}

JsonLinesLogger::JsonLinesLogger(const std::filesystem::path& path)
    : file_("JsonLinesLogger", path, LogFile::Tail::cut_broken_line) {}

void JsonLinesLogger::write(const LogRecord& record) {
  begin_object(line_, record.step, record.seconds);
  for (const NamedNumber& number : record.numbers) {
    line_.append(", ").append(json_quoted(number.name)).append(": ");
    append_json(line_, number.value);
  }
  line_ += "}\n";
  file_.append(line_, record.seconds);
}

void JsonLinesLogger::write_text(int64_t step, double seconds, std::string_view name,
                                 std::string_view text) {
  begin_object(line_, step, seconds);
  line_ += ", \"text\": {" + json_quoted(name) + ": " + json_quoted(text) + "}}\n";
  file_.append(line_, seconds);
}

// Scalars in the event files that TensorBoard reads.

namespace {

using namespace event_file;

std::string event(double seconds) {
  std::string bytes;
  append_double(bytes, 1, seconds);
  return bytes;
}

/// Returns Event{wall_time, step, summary}.
std::string summary_event(double seconds, int64_t step, std::string_view summary) {
  std::string bytes = event(seconds);
  append_integer(bytes, 2, step);
  append_bytes(bytes, 5, summary);
  return framed(bytes);
}

/// Makes a file whose name is unique in this directory, in TensorFlow's pattern; TensorBoard reads
/// files in the order of their names.
std::filesystem::path new_event_file(const std::filesystem::path& directory) {
  static std::atomic<int> counter = 0;
  files::require_path("TensorBoardLogger", directory);
  std::error_code error, ignored;
  std::filesystem::create_directory(directory, error);
  if (!std::filesystem::is_directory(directory, ignored))
    fail<FormatError>("TensorBoardLogger", "cannot make the directory ", directory.string(), ": ",
                      error ? error.message() : "it is a file",
                      ". Name one whose parent exists and is writable.");
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  char name[400];
  std::snprintf(name, sizeof name, "events.out.tfevents.%010lld.%s.%ld.%d",
                static_cast<long long>(seconds), host, long(::getpid()), counter++);
  return directory / name;
}

}  // namespace

TensorBoardLogger::TensorBoardLogger(const std::filesystem::path& directory)
    : file_("TensorBoardLogger", new_event_file(directory), LogFile::Tail::keep) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const double seconds = std::chrono::duration<double>(now).count();
  std::string version = event(seconds);
  append_bytes(version, 3, "brain.Event:2");  // the first event names the format
  file_.append(framed(version), seconds);
}

void TensorBoardLogger::write(const LogRecord& record) {
  std::string summary;
  for (const NamedNumber& number : record.numbers) {
    std::string value;  // Summary.Value{tag, simple_value}
    append_bytes(value, 1, number.name);
    append_float(value, 2, float(number.value));
    append_bytes(summary, 1, value);
  }
  file_.append(summary_event(record.seconds, record.step, summary), record.seconds);
}

/// Writes the input of the text plugin: a string tensor of shape [1] with metadata that name the
/// plugin.
void TensorBoardLogger::write_text(int64_t step, double seconds, std::string_view name,
                                   std::string_view text) {
  std::string size, shape, tensor, plugin, metadata, value, summary;
  append_integer(size, 1, 1);       // TensorShapeProto.Dim{size}
  append_bytes(shape, 2, size);     // TensorShapeProto{dim}
  append_integer(tensor, 1, 7);     // TensorProto{dtype = DT_STRING,
  append_bytes(tensor, 2, shape);   //             tensor_shape,
  append_bytes(tensor, 8, text);    //             string_val}
  append_bytes(plugin, 1, "text");  // SummaryMetadata.PluginData{plugin_name}
  append_bytes(metadata, 1, plugin);
  append_bytes(value, 1, std::string(name) + "/text_summary");
  append_bytes(value, 8, tensor);
  append_bytes(value, 9, metadata);
  append_bytes(summary, 1, value);
  file_.append(summary_event(seconds, step, summary), seconds);
}

}  // namespace halftone::train
