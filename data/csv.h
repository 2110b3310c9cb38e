// Tables of comma-separated values (RFC 4180): quoted fields, "" for a quote inside, lines that end
// with LF or CRLF. Cells stay text until a column is requested as numbers or as classes. Files are
// not trusted: the reader checks a size limit, that all lines have equal numbers of cells, and that
// every cell of a numeric column is a number.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <halftone/core/tensor.h>

namespace halftone::data {

struct CsvOptions {
  char separator = ',';
  /// True: the first line names the columns; otherwise they are "0", "1", ...
  bool header = true;
  /// Texts of a missing value, such as {"NA", ""}: numbers() returns NaN for such a cell, and
  /// throws if the dtype is an integer; classes() takes it as any other text.
  std::vector<std::string> missing{};
  /// True: "1,5" is 1.5; separate cells by another character, or quote such numbers.
  bool decimal_comma = false;
  /// The character between groups of three digits: ',' reads "1,234.5" as 1234.5. 0: none.
  char thousands = 0;
  int64_t max_bytes = int64_t(1) << 30;  // of the file; columns: at most 65,536
};

/// The class number of each row of a column of texts, and the text of each number: texts are
/// numbered in alphabetical order.
struct Classes {
  Tensor numbers;  // i64 [rows]
  std::vector<std::string> names;
};

/// Texts stored one after the other, with 8 bytes more for each.
class CellTexts {
 public:
  std::size_t size() const { return ends_.size(); }
  std::string_view operator[](std::size_t i) const {
    const std::size_t begin = i == 0 ? 0 : ends_[i - 1];
    return std::string_view(text_).substr(begin, ends_[i] - begin);
  }
  void add(std::string_view cell) { text_ += cell, ends_.push_back(text_.size()); }
  /// Drops all but the first `size` texts.
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
  /// Returns a cell as written in the file, without quotes. Row 0 is the first after the header.
  std::string_view cell(int64_t row, std::string_view column) const;

  /// Returns these columns as f32 [rows, columns], or in another dtype; each number is rounded
  /// once. Throws FormatError, with line and column, for a cell that is not a number (also an empty
  /// one) or that the dtype cannot hold; UsageError for an unknown column.
  Tensor numbers(const std::vector<std::string>& columns, DType dtype = f32) const;
  /// Returns one column as f32 [rows].
  Tensor column(const std::string& name, DType dtype = f32) const;
  /// Returns a column of any texts as classes. Pass the training table's Classes::names for other
  /// tables, so that equal texts get equal numbers; FormatError, with the line, is thrown for a
  /// text that is not in `names`.
  Classes classes(const std::string& column, const std::vector<std::string>& names = {}) const;
  /// Returns the names of all columns but these, in the order of the file.
  std::vector<std::string> columns_without(const std::vector<std::string>& left_out) const;

 private:
  friend CsvTable read_csv(const std::filesystem::path& path, const CsvOptions& options);
  friend CsvTable csv_from_text(std::string_view text, const CsvOptions& options);
  std::size_t place_of(std::string_view column) const;
  [[noreturn]] void refuse_cell(std::size_t row, std::size_t place, std::string_view problem,
                                std::string_view remedy) const;
  template <class T> Tensor parsed(const std::vector<std::size_t>& places, DType dtype) const;
  void name_columns(bool header);
  static CsvTable from(std::string_view text, const CsvOptions& options, std::string source);

  std::string source_;  // for messages
  CsvOptions options_{};
  std::vector<std::string> columns_;
  CellTexts cells_;             // row by row
  std::vector<int64_t> lines_;  // the line in the file where each row begins, from 1
};

/// Return the table in a file or a text. Throw FormatError if it is too large, missing, in UTF-16
/// or not well formed (with the line); UsageError for options that contradict each other.
CsvTable read_csv(const std::filesystem::path& path, const CsvOptions& options = {});
CsvTable csv_from_text(std::string_view text, const CsvOptions& options = {});

}  // namespace halftone::data
