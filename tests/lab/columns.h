// Tables of lab/table.h, read again: cells by line and column.
#pragma once

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include <halftone/core/error.h>

namespace halftone::test {

/// A table as text. The first column begins after two spaces. The others end below the end of their
/// heads, or further to the right, with two spaces between them.
class Columns {
 public:
  explicit Columns(const std::string& text) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) lines_.push_back(line);
    find_ends();
  }

  int rows() const { return int(lines_.size()) - 1; }
  int columns() const { return int(starts_.size()); }
  /// Returns a cell without the spaces around it; row -1 has the heads.
  std::string cell(int row, int column) const {
    const std::string& line = lines_.at(std::size_t(row + 1));
    const std::size_t from = starts_.at(std::size_t(column));
    if (from >= line.size()) return "";
    const bool last = column + 1 == columns();
    return trimmed(line.substr(from, last ? line.npos : starts_[std::size_t(column + 1)] - from));
  }
  bool has(const std::string& head) const {
    for (int column = 0; column < columns(); ++column)
      if (cell(-1, column) == head) return true;
    return false;
  }
  std::string at(int row, const std::string& head) const {
    for (int column = 0; column < columns(); ++column)
      if (cell(-1, column) == head) return cell(row, column);
    fail<UsageError>("test", "no column has the head \"", head, "\".");
  }

 private:
  static std::string trimmed(const std::string& text) {
    const std::size_t from = text.find_first_not_of(' '), to = text.find_last_not_of(' ');
    return from == text.npos ? "" : text.substr(from, to - from + 1);
  }
  /// Columns begin after two spaces that all lines have.
  void find_ends() {
    std::size_t width = 0;
    for (const std::string& line : lines_) width = std::max(width, line.size());
    const auto is_gap = [&](std::size_t at) {
      return std::ranges::all_of(
          lines_, [&](const std::string& line) { return at >= line.size() || line[at] == ' '; });
    };
    for (std::size_t at = 2; at < width; ++at)
      if (!is_gap(at) && is_gap(at - 1) && is_gap(at - 2)) starts_.push_back(at);
  }

  std::vector<std::string> lines_{};
  std::vector<std::size_t> starts_{};
};

}  // namespace halftone::test
