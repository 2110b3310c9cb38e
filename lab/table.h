// Tables of experiments. Each column is as wide as its widest cell; the first is aligned left, the
// others right.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace halftone::lab {

/// Writes up to `digits` significant digits, in the shorter of both notations: "0.0031", "4.5e-05".
std::string number(double value, int digits = 4);
/// Writes `digits` digits after the point.
std::string fixed(double value, int digits);
/// Returns the shortest text that reads back as the same number.
std::string exact(double value);
/// Writes a share of 1 as "12.3 %".
std::string percent(double share);

/// Columns whose cells are all empty are not printed.
class Table {
 public:
  explicit Table(std::vector<std::string> heads) : rows_{std::move(heads)} {}
  /// Cells may come from files: control characters are made printable.
  void row(std::vector<std::string> cells);
  friend std::ostream& operator<<(std::ostream& out, const Table& table);

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace halftone::lab
