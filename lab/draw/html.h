// Pieces of a page as text: escaping, tables, heat maps. What comes out is HTML and well-formed XML
// at once, and no text of a file becomes markup.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace halftone::lab::html {

/// For element content and quoted attributes. What XML cannot hold - control characters, broken
/// UTF-8 - becomes U+FFFD, and so do the marks that turn the direction of writing.
std::string escaped(std::string_view text);

/// The text if it has up to `most` characters; else as much of its begin and end as fits, around an
/// ellipsis.
std::string shortened(std::string_view text, std::size_t most);

/// <tag attributes>content</tag>; attributes and content are markup already.
std::string element(std::string_view tag, std::string_view attributes, std::string_view content);

/// In a box that scrolls by itself where the page is too narrow. Cells are markup.
class Table {
 public:
  /// The first `texts` columns are to the left, the others are numbers, to the right.
  explicit Table(std::vector<std::string> heads, std::size_t texts = 1);
  void row(const std::vector<std::string>& cells);
  std::size_t rows() const { return rows_; }
  std::string text() const;

 private:
  std::size_t texts_, rows_ = 0;
  std::string head_, body_;
};

/// A table whose cells have one of nine backgrounds.
struct HeatCell {
  std::string text{};    // in the cell; markup
  std::string title{};   // when the pointer is over it; plain
  double strength = -1;  // 0 to 1; below 0: no background
};
struct HeatRow {
  std::string name;  // plain
  std::vector<HeatCell> cells;
};
std::string heat_map(std::string_view caption, const std::vector<std::string>& heads,
                     const std::vector<HeatRow>& rows);

}  // namespace halftone::lab::html
