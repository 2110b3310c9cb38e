// Tables of comma-separated values (RFC 4180): quoted fields, "" for a quote inside, lines that end
// with LF or CRLF. Cells stay text until a column is asked for, as numbers or as classes. Files are
// distrusted: a size limit, equal numbers of cells in all lines, and every cell of a numeric column
// a number.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <halftone/core/tensor.h>

namespace halftone::data {

struct CsvOptions {
  char separator = ',';
  /// The first line names the columns; otherwise they are "0", "1", ...
  bool header = true;
  int64_t max_bytes = int64_t(1) << 30;
};

/// Class numbers of a column of texts, and the texts in the order of their numbers, which is
/// alphabetical.
struct Classes {
  Tensor numbers;  // i64 [rows]
  std::vector<std::string> names;
};

class CsvTable {
 public:
  int64_t rows() const { return columns_.empty() ? 0 : int64_t(cells_.size() / columns_.size()); }
  const std::vector<std::string>& columns() const { return columns_; }
  bool has(std::string_view column) const;
  /// A cell as it stands in the file, without quotes. Row 0 is the first behind the header.
  const std::string& cell(int64_t row, std::string_view column) const;

  /// These columns as f32 [rows, columns], or f64. Throws FormatError, with line and column, for a
  /// cell that is no number (an empty one, too); UsageError for a column that there is not, with
  /// the nearest name.
  Tensor numbers(const std::vector<std::string>& columns, DType dtype = f32) const;
  /// One column as f32 [rows].
  Tensor column(const std::string& name, DType dtype = f32) const;
  /// A column of any texts as classes.
  Classes classes(const std::string& column) const;
  /// All columns but these, in the order of the file.
  std::vector<std::string> columns_without(const std::vector<std::string>& left_out) const;

 private:
  friend CsvTable read_csv(const std::filesystem::path& path, const CsvOptions& options);
  friend CsvTable csv_from_text(std::string_view text, const CsvOptions& options);
  std::size_t place_of(std::string_view column) const;

  std::string source_;  // for messages
  std::vector<std::string> columns_;
  std::vector<std::string> cells_;  // row by row
  std::vector<int64_t> lines_;      // where each row begins in the file, from 1
};

/// Throws FormatError for a file that is missing, too large or not well formed, with its line.
CsvTable read_csv(const std::filesystem::path& path, const CsvOptions& options = {});
CsvTable csv_from_text(std::string_view text, const CsvOptions& options = {});

/// Columns made comparable: (x - mean) / std of each, the mean and the standard deviation
/// (of n, not n - 1) being those of the data that it was made from. A column that never changes
/// becomes 0. As scikit-learn's StandardScaler.
struct Standardizer {
  Tensor mean, std;  // f32 [columns]

  /// x: floating [rows, columns], one row or more.
  static Standardizer of(const Tensor& x);
  /// f32, shaped as x: [.., columns].
  Tensor operator()(const Tensor& x) const;
  /// The way back, for predictions of a standardised target.
  Tensor undo(const Tensor& x) const;
};

}  // namespace halftone::data
