// Tables of comma-separated values. An accepted table has the form that it says, and is the same
// table when it is written with every cell quoted.
#include "fuzz.h"

#include <halftone/data/csv.h>

namespace halftone::fuzz {

const Limits limits{.longest_input = 2048, .allocation_mib = 3, .resident_mib = 256};

namespace {
std::optional<data::CsvTable> read(std::string_view text, const data::CsvOptions& options) {
  return accepted<FormatError>("csv", [&] { return data::csv_from_text(text, options); });
}

std::string in_quotes(std::string_view cell) {
  std::string text = "\"";
  for (const char c : cell) text += c == '"' ? std::string("\"\"") : std::string(1, c);
  return text + '"';
}
}  // namespace

void check(std::string_view bytes) {
  const data::CsvOptions options{.separator = bytes.starts_with(';') ? ';' : ','};
  const std::optional<data::CsvTable> table = read(bytes, options);
  if (!table) return;
  const auto& names = table->columns();
  std::string text;
  const auto add_line = [&](const auto& cell_of) {
    for (std::size_t i = 0; i < names.size(); ++i)
      text += (i ? std::string(1, options.separator) : "") + in_quotes(cell_of(names[i]));
    text += "\r\n";
  };
  add_line([](const std::string& name) { return name; });
  for (int64_t row = 0; row < table->rows(); ++row)
    add_line([&](const std::string& name) { return table->cell(row, name); });

  for (const std::string& name : names) {
    const auto numbers = accepted<FormatError>("csv", [&] { return table->column(name, f64); });
    if (numbers) require(numbers->numel() == table->rows(), "a number for every row");
    const data::Classes classes = table->classes(name);
    for (const int64_t number : classes.numbers.to_vector<int64_t>())
      require(number >= 0 && number < int64_t(classes.names.size()), "every class has a name");
  }
  // A single column of blanks looks like an empty line.
  if (names.size() < 2) return;
  const std::optional<data::CsvTable> again = read(text, options);
  require(again.has_value() && again->columns() == names && again->rows() == table->rows(),
          "quotes change nothing");
  for (int64_t row = 0; row < table->rows(); ++row)
    for (const std::string& name : names)
      require(again->cell(row, name) == table->cell(row, name), "nor any cell");
}

}  // namespace halftone::fuzz
