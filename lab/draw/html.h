// Pieces of a page as text: escaping, tables, heat maps. The output is both HTML and well-formed
// XML, and no text from a file becomes markup.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace halftone::lab::html {

/// Escapes text for element content and quoted attributes. Replaces what XML cannot hold (control
/// characters, broken UTF-8) and marks that change the direction of writing by U+FFFD.
std::string escaped(std::string_view text);

/// Returns the text if it has up to `most` characters. Otherwise returns its beginning and end with
/// an ellipsis between them, `most` characters in all.
std::string shortened(std::string_view text, std::size_t most);

/// Returns <tag attributes>content</tag>; attributes and content must be markup already.
std::string element(std::string_view tag, std::string_view attributes, std::string_view content);

/// A table in a box that scrolls by itself if the page is too narrow. Cells are markup.
class Table {
 public:
  /// The first `texts` columns are aligned left; the others hold numbers and are aligned right.
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
