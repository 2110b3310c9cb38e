// Reads JSON from untrusted files.
#include <halftone/lab/table.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <ostream>

#include <halftone/core/error.h>
#include <halftone/core/files.h>

namespace halftone::lab {

using nlohmann::json;

namespace {
const json* member(const json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() ? nullptr : &*found;
}
}  // namespace

bool is_within_limits(std::string_view text) {
  std::size_t levels = 0, values = 1;
  bool in_text = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_text) {
      if (c == '\\') ++i;
      else in_text = c != '"';
      continue;
    }
    if (c == '"') in_text = true;
    else if (c == ',') ++values;
    else if (c == '[' || c == '{') ++levels, ++values;
    else if (c == ']' || c == '}') levels -= levels > 0;
    if (levels > most_json_levels || values > most_json_values) return false;
  }
  return true;
}

json read_json_document(std::string_view op, const std::filesystem::path& path) {
  const std::string text = files::read_text(op, path, most_json_bytes);
  if (!is_within_limits(text))
    fail<FormatError>(op, path.string(), ": more than ", most_json_levels,
                      " levels of braces and brackets, or more than ", most_json_values,
                      " values. Make it anew, or leave it out.");
  json result = json::parse(text, nullptr, false);
  if (result.is_discarded())
    fail<FormatError>(op, path.string(), ": not JSON. Make it anew, or leave it out.");
  return result;
}

json read_json(std::string_view op, const std::filesystem::path& path) {
  json result = read_json_document(op, path);
  if (!result.is_object())
    fail<FormatError>(op, path.string(), ": not a JSON object. Make it anew, or leave it out.");
  return result;
}

bool is_json_object(std::string_view text) {
  return is_within_limits(text) && json::parse(text, nullptr, false).is_object();
}

int64_t each_json_line(std::string_view op, const std::filesystem::path& path,
                       const std::function<bool(const json&)>& use) {
  const std::string text = files::read_text(op, path, most_lines_bytes);
  int64_t skipped = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = std::string_view(text).substr(at, end - at);
    at = end + 1;
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    if (line.size() > most_line_bytes || !is_within_limits(line)) {
      ++skipped;
      continue;
    }
    const json object = json::parse(line, nullptr, false);
    if (!object.is_object() || !use(object)) ++skipped;
  }
  return skipped;
}

std::optional<double> number_in(const json& object, const char* key) {
  const json* const found = member(object, key);
  if (!found || !found->is_number()) return {};
  const double value = found->get<double>();
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

std::optional<int64_t> count_in(const json& object, const char* key) {
  const std::optional<double> value = number_in(object, key);
  if (!value || *value < 0 || *value > 0x1p53) return {};
  return int64_t(*value);
}

std::string text_in(const json& object, const char* key) {
  const json* const found = member(object, key);
  return found && found->is_string() ? found->get<std::string>() : "";
}

const json& array_in(const json& object, const char* key) {
  static const json none = json::array();
  const json* const found = member(object, key);
  return found && found->is_array() ? *found : none;
}

const json& object_in(const json& object, const char* key) {
  static const json none = json::object();
  const json* const found = member(object, key);
  return found && found->is_object() ? *found : none;
}

// Makes each column as wide as its widest cell.

namespace {
std::string printed(const char* form, int digits, double value) {
  char text[64];
  std::snprintf(text, sizeof text, form, digits, value);
  return text;
}
}  // namespace

std::string number(double value, int digits) { return printed("%.*g", digits, value); }
std::string fixed(double value, int digits) { return printed("%.*f", digits, value); }
std::string exact(double value) {
  char text[40];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}
std::string percent(double share) { return fixed(100 * share, 1) + " %"; }

std::string interval_text(double middle, double half, bool signed_middle) {
  const std::string sign = signed_middle && middle > 0 ? "+" : "";
  if (half == 0) return sign + number(middle, 3) + " ± 0";
  if (!std::isfinite(half) || std::abs(middle) >= 1e6) return sign + number(middle, 3);
  const int places = std::clamp(1 - int(std::floor(std::log10(half))), 0, 12);
  return sign + fixed(middle, places) + " ± " + fixed(half, places);
}

std::string csv_cell(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == text.npos) return std::string(text);
  std::string result = "\"";
  for (const char c : text) result += c == '"' ? std::string("\"\"") : std::string(1, c);
  return result + '"';
}

void Table::row(std::vector<std::string> cells) {
  for (std::string& cell : cells) cell = printable(cell);
  rows_.push_back(std::move(cells));
}

std::ostream& operator<<(std::ostream& out, const Table& table) {
  std::vector<std::size_t> widths;
  for (const std::vector<std::string>& cells : table.rows_) {
    widths.resize(std::max(widths.size(), cells.size()));
    for (std::size_t i = 0; i < cells.size(); ++i) widths[i] = std::max(widths[i], cells[i].size());
  }
  // A column without a cell below its head is left out.
  std::vector<bool> filled(widths.size(), table.rows_.size() < 2);
  for (std::size_t row = 1; row < table.rows_.size(); ++row)
    for (std::size_t i = 0; i < table.rows_[row].size(); ++i)
      filled[i] = filled[i] || i == 0 || !table.rows_[row][i].empty();
  for (const std::vector<std::string>& cells : table.rows_) {
    std::string line = "  ";
    for (std::size_t i = 0; i < cells.size(); ++i) {
      if (!filled[i]) continue;
      const std::string space(widths[i] - cells[i].size(), ' ');
      line += i == 0 ? cells[i] + space : "  " + space + cells[i];
    }
    out << line << '\n';
  }
  return out;
}

}  // namespace halftone::lab
