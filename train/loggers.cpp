// CSV and JSON lines. Numbers have the fewest digits that read back to the same f64.
#include <halftone/train/loggers.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include <nlohmann/json.hpp>

#include <halftone/core/error.h>

namespace halftone::train {

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

}  // namespace halftone::train
