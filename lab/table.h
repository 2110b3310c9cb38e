// Reads JSON from files that other programs wrote or broke: a value that is missing or has another
// type is absent, and never causes an exception. Not installed: it needs a JSON library.
#pragma once

#include <filesystem>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include <halftone/lab/lab.h>

namespace halftone::lab {

/// Limits on JSON files, so that a hostile file costs at most a few times its size in memory: on
/// the bytes of a document, of all lines of a file, and of one line; on levels of braces and
/// brackets; and on values in a document or a line.
inline constexpr std::size_t most_json_bytes = std::size_t(1) << 25,
                             most_lines_bytes = std::size_t(1) << 28,
                             most_line_bytes = std::size_t(1) << 20, most_json_levels = 64,
                             most_json_values = std::size_t(1) << 20;
/// Returns whether a text, JSON or not, is within the limits on levels and values.
bool is_within_limits(std::string_view text);

/// Reads a whole document, which must be a JSON object. Throws FormatError "[op] PATH: ..." for
/// other content and for a document that exceeds the limits.
nlohmann::json read_json(std::string_view op, const std::filesystem::path& path);
/// Reads a document with any JSON value, and throws in the same way.
nlohmann::json read_json_document(std::string_view op, const std::filesystem::path& path);

/// Returns whether a text is a JSON object within the limits.
bool is_json_object(std::string_view text);

/// Calls `use` with each line that is an object within the limits. Returns how many lines were not
/// used: other lines that are not blank, and those for which `use` returned false. Throws
/// FormatError if the file cannot be read.
int64_t each_json_line(std::string_view op, const std::filesystem::path& path,
                       const std::function<bool(const nlohmann::json&)>& use);

/// Returns the finite number of `key`; nullopt if there is none.
std::optional<double> number_in(const nlohmann::json& object, const char* key);
/// Returns the number of `key` without its fraction; nullopt unless it is from 0 to 2^53.
std::optional<int64_t> count_in(const nlohmann::json& object, const char* key);
/// Returns the text of `key`; "" if there is none.
std::string text_in(const nlohmann::json& object, const char* key);
/// Returns the member `key` if it is an array (object_in(): an object), otherwise an empty one.
const nlohmann::json& array_in(const nlohmann::json& object, const char* key);
const nlohmann::json& object_in(const nlohmann::json& object, const char* key);

// Tables of experiments. Each column is as wide as its widest cell; the first is aligned left, the
// others right.

/// Returns up to `digits` significant digits, in the shorter notation of two: "0.0031", "4.5e-05".
std::string number(double value, int digits = 4);
/// Returns the number with `digits` digits after the point.
std::string fixed(double value, int digits);
/// Returns the shortest text that reads back as the same number.
std::string exact(double value);
/// Returns a share such as 0.123 as "12.3 %".
std::string percent(double share);
/// Returns a text such as "+1.2 ± 0.3": the half width has two digits, and the middle as many
/// places. If the half width is not finite, returns the middle alone, with three digits.
std::string interval_text(double middle, double half, bool signed_middle = true);
/// Returns the text as a CSV cell (RFC 4180): in quotes if it has commas, quotes or line ends.
std::string csv_cell(std::string_view text);

/// A table of text for printing. Columns whose cells are all empty are not printed.
class Table {
 public:
  explicit Table(std::vector<std::string> heads) : rows_{std::move(heads)} {}
  /// Cells may come from files: control characters are made printable.
  void row(std::vector<std::string> cells);
  friend std::ostream& operator<<(std::ostream& out, const Table& table);

 private:
  std::vector<std::vector<std::string>> rows_;
};

/// Runs write_table() for options.output and returns the exit code. Throws what it throws.
int run_table(const TableOptions& options);

}  // namespace halftone::lab
