// Makes each column as wide as its widest cell.
#include <halftone/lab/table.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <ostream>

#include <halftone/core/error.h>

namespace halftone::lab {

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
