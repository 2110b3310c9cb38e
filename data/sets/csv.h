// Tables of comma-separated values (RFC 4180): quoted fields, "" for a quote inside, lines that end
// with LF or CRLF. Cells stay text until a column is asked for, as numbers or as classes. Files are
// distrusted: a size limit, equal numbers of cells in all lines, and every cell of a numeric column
// a number.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <halftone/core/tensor.h>

namespace halftone::data {

struct CsvOptions {
  char separator = ',';
  /// The first line names the columns; otherwise they are "0", "1", ...
  bool header = true;
  int64_t max_bytes = int64_t(1) << 30;  // of the file; columns: at most 65,536
};

/// Class numbers of a column of texts, and the texts in the order of their numbers, which is
/// alphabetical.
struct Classes {
  Tensor numbers;  // i64 [rows]
  std::vector<std::string> names;
};

/// Texts one after the other, in 8 bytes more than their own each.
class CellTexts {
 public:
  std::size_t size() const { return ends_.size(); }
  std::string_view operator[](std::size_t i) const {
    const std::size_t begin = i == 0 ? 0 : ends_[i - 1];
    return std::string_view(text_).substr(begin, ends_[i] - begin);
  }
  void add(std::string_view cell) { text_ += cell, ends_.push_back(text_.size()); }
  /// Drops all but the first.
  void shorten(std::size_t size) { ends_.resize(size), text_.resize(size ? ends_.back() : 0); }

 private:
  std::string text_;
  std::vector<std::size_t> ends_;
};

/// A table in memory: its text, and 8 bytes for each cell and each line.
class CsvTable {
 public:
  int64_t rows() const { return columns_.empty() ? 0 : int64_t(cells_.size() / columns_.size()); }
  const std::vector<std::string>& columns() const { return columns_; }
  bool has(std::string_view column) const;
  /// A cell as it stands in the file, without quotes. Row 0 is the first behind the header.
  std::string_view cell(int64_t row, std::string_view column) const;

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
  void name_columns(bool header);

  std::string source_;  // for messages
  std::vector<std::string> columns_;
  CellTexts cells_;             // row by row
  std::vector<int64_t> lines_;  // where each row begins in the file, from 1
};

/// Throws FormatError for a file that is missing, too large or not well formed, with its line.
CsvTable read_csv(const std::filesystem::path& path, const CsvOptions& options = {});
CsvTable csv_from_text(std::string_view text, const CsvOptions& options = {});

}  // namespace halftone::data
