// One pass over the text splits it into cells; numbers are parsed when a column is requested.
#include <halftone/data/csv.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <type_traits>
#include <utility>

#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/core/memory.h>
#include <halftone/core/named_tensors.h>
#include <halftone/core/tensor.h>
#include <halftone/data/sets.h>

namespace halftone::data {

namespace {
constexpr std::string_view where = "csv";
constexpr std::size_t largest_width = 1 << 16;

/// Takes cells from the front of a text.
class Cells {
 public:
  Cells(std::string_view text, char separator, const std::string& source)
      : text_(text), separator_(separator), source_(source) {}

  bool done() const { return text_.empty(); }
  int64_t line() const { return line_; }

  /// Appends the cells of one line, moves to the next line, and returns the number of cells.
  std::size_t next_line(CellTexts& to) {
    std::size_t count = 0;
    do to.add(next_cell()), ++count;
    while (!ends_line());
    return count;
  }

 private:
  std::string next_cell() {
    if (text_.starts_with('"')) return quoted();
    const char stops[] = {separator_, '\n', '\r'};
    const std::size_t end = std::min(text_.find_first_of(std::string_view(stops, 3)), text_.size());
    std::string cell(text_.substr(0, end));
    if (cell.find('"') != std::string::npos)
      fail<FormatError>(where, source_, ", line ", line_,
                        ": a quote inside a cell that does not begin with one. Quote the whole "
                        "cell, and write \"\" for a quote in it.");
    text_.remove_prefix(end);
    return cell;
  }

  std::string quoted() {
    std::string cell;
    const int64_t begin = line_;
    for (std::size_t i = 1; i < text_.size(); ++i) {
      if (text_[i] == '"') {
        if (i + 1 < text_.size() && text_[i + 1] == '"') {
          ++i;
        } else {
          text_.remove_prefix(i + 1);
          if (!text_.empty() && text_[0] != separator_ && text_[0] != '\n' && text_[0] != '\r')
            fail<FormatError>(where, source_, ", line ", line_,
                              ": text after a closing quote. Write \"\" for a quote in a cell.");
          return cell;
        }
      }
      if (text_[i] == '\n') ++line_;
      cell += text_[i];
    }
    fail<FormatError>(where, source_, ", line ", begin, ": a quote is never closed. Close it.");
  }

  /// Skips the end of a cell: returns false for a separator, true for the end of the line.
  bool ends_line() {
    if (text_.empty()) return true;
    const char next = text_[0];
    text_.remove_prefix(1);
    if (next == separator_) return false;
    if (next == '\r' && text_.starts_with('\n')) text_.remove_prefix(1);
    ++line_;
    return true;
  }

  std::string_view text_;
  char separator_;
  const std::string& source_;
  int64_t line_ = 1;
};

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}
}  // namespace

CsvTable read_csv(const std::filesystem::path& path, const CsvOptions& options) {
  return CsvTable::from(file_bytes(where, path, options.max_bytes), options, path.string());
}

CsvTable csv_from_text(std::string_view text, const CsvOptions& options) {
  return CsvTable::from(text, options, "the text");
}

namespace {
void check(const CsvOptions& options) {
  if (options.separator == '"' || options.separator == '\n' || options.separator == '\r')
    fail<UsageError>(where, "the separator is a quote or an end of line. Use ',', ';' or a tab.");
  const char mark = options.thousands;
  if (mark == (options.decimal_comma ? ',' : '.'))
    fail<UsageError>(where, "thousands and decimals have the same mark, '", mark,
                     "'. Choose another one for thousands, or see decimal_comma.");
  if (mark != 0 && std::string_view(".,' _").find(mark) == std::string_view::npos)
    fail<UsageError>(where, "thousands are marked by ", in_quotes(std::string_view(&mark, 1)),
                     ". Use a point, a comma, an apostrophe, '_' or a space.");
}

/// Returns whether the text begins with UTF-16's byte-order mark, as spreadsheets write it.
bool is_utf16(std::string_view text) {
  return text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff");
}
}  // namespace

CsvTable CsvTable::from(std::string_view text, const CsvOptions& options, std::string source) {
  return or_no_memory(where, int64_t(text.size()), [&] {
    check(options);
    CsvTable table;
    table.source_ = std::move(source), table.options_ = options;
    if (is_utf16(text)) fail<FormatError>(where, table.source_, " is UTF-16. Save it as UTF-8.");
    if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);  // a byte-order mark
    Cells cells(text, options.separator, table.source_);
    bool named = false;
    while (!cells.done()) {
      const int64_t line = cells.line();
      const std::size_t before = table.cells_.size(), count = cells.next_line(table.cells_);
      if (count == 1 && trimmed(table.cells_[before]).empty()) {  // an empty line
        table.cells_.shorten(before);
        continue;
      }
      if (!named) {
        table.name_columns(options.header);
        named = true;
        if (options.header) table.cells_.shorten(0);
        if (options.header) continue;
      }
      if (count != table.columns_.size())
        fail<FormatError>(where, table.source_, ", line ", line, ": it has ", count,
                          " cells, the first has ", table.columns_.size(),
                          ". Every line must have as many.");
      table.lines_.push_back(line);
    }
    return table;
  });
}

/// Names columns from the first line, the only one read at this time.
void CsvTable::name_columns(bool header) {
  if (cells_.size() > largest_width)
    fail<FormatError>(where, source_, " has ", cells_.size(), " columns, the limit is ",
                      largest_width, ". Check the separator.");
  std::set<std::string> names;
  for (std::size_t i = 0; i < cells_.size(); ++i) {
    columns_.push_back(header ? std::string(trimmed(cells_[i])) : std::to_string(i));
    if (!names.insert(columns_.back()).second)
      fail<FormatError>(where, source_, ": two columns are called ", in_quotes(columns_.back(), 40),
                        ". Rename one.");
  }
}

bool CsvTable::has(std::string_view column) const {
  return std::ranges::find(columns_, column) != columns_.end();
}

std::size_t CsvTable::place_of(std::string_view column) const {
  const auto found = std::ranges::find(columns_, column);
  if (found != columns_.end()) return std::size_t(found - columns_.begin());
  std::vector<std::string> all;
  for (const std::string& name : columns_) all.push_back(in_quotes(name, 40));
  fail<UsageError>(where, "there is no column ", in_quotes(column, 40), " in ", source_,
                   ". Its columns are: ", halftone::listed(all), '.');
}

std::string_view CsvTable::cell(int64_t row, std::string_view column) const {
  if (row < 0 || row >= rows())
    fail<UsageError>(where, "there is no row ", row, ": the table has ", rows(),
                     ". Number rows from 0.");
  return cells_[std::size_t(row) * columns_.size() + place_of(column)];
}

void CsvTable::refuse_cell(std::size_t row, std::size_t place, std::string_view problem,
                           std::string_view remedy) const {
  fail<FormatError>(
      where, source_, ", line ", lines_[row], ", column ", in_quotes(columns_[place], 40), ": ",
      in_quotes(cells_[row * columns_.size() + place], 40), ' ', problem, ". ", remedy);
}

namespace {
enum class Parsed { number, no_number, out_of_range };

/// Returns whether a number that no double can hold is too small for one, and not too large.
bool is_tiny(std::string_view text) {
  if (text.starts_with('-')) text.remove_prefix(1);
  const std::size_t e = text.find_first_of("eE");
  return e != std::string_view::npos ? text.substr(e + 1).starts_with('-')
                                     : text.starts_with('0') || text.starts_with('.');
}

/// Reads a whole text as a T, rounded once. What is too small for a T becomes 0.
template <class T> Parsed parse(std::string_view text, T& value) {
  if (text.starts_with("+-")) return Parsed::no_number;
  if (text.starts_with('+')) text.remove_prefix(1);
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (text.empty() || stop != end || error == std::errc::invalid_argument) {
    if constexpr (std::is_integral_v<T>) {  // 3.0 and 1e3 are whole as well
      double real = 0;
      const Parsed result = parse(text, real);
      if (result != Parsed::number) return result;
      if (real != std::trunc(real) || std::abs(real) > 0x1p53) return Parsed::out_of_range;
      value = T(real);
      return Parsed::number;
    }
    return Parsed::no_number;
  }
  if (error == std::errc()) return Parsed::number;
  if constexpr (std::is_same_v<T, float>) {
    double wide = 0;
    if (std::from_chars(text.data(), end, wide).ec == std::errc()) {
      value = float(wide);
      return std::isfinite(value) ? Parsed::number : Parsed::out_of_range;
    }
  }
  if (std::is_integral_v<T> || !is_tiny(text)) return Parsed::out_of_range;
  value = 0;
  return Parsed::number;
}

/// Returns a number as C++ writes it, without marks of thousands and with a point; "" for a text
/// whose marks are not where they must be.
std::string plain_number(std::string_view text, const CsvOptions& options) {
  const char point = options.decimal_comma ? ',' : '.';
  std::string plain;
  std::size_t i = 0, group = 0;
  bool marked = false;
  if (i < text.size() && (text[i] == '-' || text[i] == '+')) plain += text[i++];
  for (; i < text.size(); ++i) {
    const bool mark = options.thousands != 0 && text[i] == options.thousands;
    if ((text[i] < '0' || text[i] > '9') && !mark) break;
    if (mark && (group == 0 || group > 3 || (marked && group != 3))) return {};
    if (mark) marked = true, group = 0;
    else plain += text[i], ++group;
  }
  if (marked && group != 3) return {};
  for (; i < text.size(); ++i) {
    if ((text[i] == ',' || text[i] == '.') && text[i] != point) return {};
    plain += text[i] == point ? '.' : text[i];
  }
  return plain;
}
}  // namespace

template <class T>
Tensor CsvTable::parsed(const std::vector<std::size_t>& places, DType dtype) const {
  const bool own_marks = options_.decimal_comma || options_.thousands != 0;
  std::vector<T> values;
  values.reserve(std::size_t(rows()) * places.size());
  const auto refuse = [&](std::size_t row, std::size_t place) {
    refuse_cell(row, place, "cannot be a number in " + std::string(name(dtype)),
                "Read the column in a wider dtype, or fix the file.");
  };
  for (std::size_t row = 0; row < std::size_t(rows()); ++row)
    for (const std::size_t place : places) {
      T value = 0;
      const std::string_view text = trimmed(cells_[row * columns_.size() + place]);
      if (std::ranges::find(options_.missing, text) != options_.missing.end()) {
        if constexpr (std::is_integral_v<T>)
          refuse_cell(row, place, "is a missing value, which no integer can be",
                      "Read the column as f32, or fill the cell.");
        else values.push_back(std::numeric_limits<T>::quiet_NaN());
        continue;
      }
      const Parsed result =
          own_marks ? parse(plain_number(text, options_), value) : parse(text, value);
      if (result == Parsed::no_number)
        refuse_cell(row, place, "is not a number", "Fix the file, or read the column as classes.");
      if (result == Parsed::out_of_range) refuse(row, place);
      values.push_back(value);
    }
  const Shape shape{rows(), int64_t(places.size())};
  if (dtype_of<T> != dtype)
    for (std::size_t i = 0; i < values.size(); ++i)
      if (lost_value(scalar(double(values[i]), dtype_of<T>), dtype))
        refuse(i / places.size(), places[i % places.size()]);
  return from_vector(values, shape, dtype);
}

Tensor CsvTable::numbers(const std::vector<std::string>& columns, DType dtype) const {
  return or_no_memory(where, int64_t(rows() * int64_t(columns.size() * sizeof(double))), [&] {
    std::vector<std::size_t> places;
    for (const std::string& column : columns) places.push_back(place_of(column));
    if (dtype == f32) return parsed<float>(places, dtype);
    return is_floating(dtype) ? parsed<double>(places, dtype) : parsed<int64_t>(places, dtype);
  });
}

Tensor CsvTable::column(const std::string& name, DType dtype) const {
  return *views::reshape(numbers({name}, dtype), {rows()});
}

Classes CsvTable::classes(const std::string& column, const std::vector<std::string>& names) const {
  return or_no_memory(where, int64_t(rows() * int64_t(sizeof(int64_t))), [&] {
    const std::size_t place = place_of(column);
    std::map<std::string, int64_t, std::less<>> known;
    Classes result{.numbers = {}, .names = names};
    for (const std::string& name : names)
      if (!known.emplace(name, int64_t(known.size())).second)
        fail<UsageError>(where, "two classes are called ", in_quotes(name, 40),
                         ". Pass the names of another table's classes.");
    if (names.empty()) {
      for (std::size_t row = 0; row < std::size_t(rows()); ++row)
        known.emplace(cells_[row * columns_.size() + place], 0);
      for (auto& [name, number] : known) {
        number = int64_t(result.names.size());
        result.names.push_back(name);
      }
    }
    std::vector<int64_t> numbers;
    for (std::size_t row = 0; row < std::size_t(rows()); ++row) {
      const auto found = known.find(cells_[row * columns_.size() + place]);
      if (found == known.end())
        refuse_cell(row, place, "is none of the " + std::to_string(names.size()) + " classes given",
                    "Pass the names of a table that has them all.");
      numbers.push_back(found->second);
    }
    result.numbers = from_vector(numbers, {rows()}, i64);
    return result;
  });
}

std::vector<std::string> CsvTable::columns_without(const std::vector<std::string>& left_out) const {
  for (const std::string& name : left_out) place_of(name);
  std::vector<std::string> kept;
  for (const std::string& name : columns_)
    if (std::ranges::find(left_out, name) == left_out.end()) kept.push_back(name);
  return kept;
}

}  // namespace halftone::data
