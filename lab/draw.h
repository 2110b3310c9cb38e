// Pieces of pages: HTML, and drawings in SVG and PDF.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace halftone::lab::html {

// Pieces of a page as text: escaping, tables. The output is both HTML and well-formed
// XML, and no text from a file becomes markup.

/// A Unicode character and its number of bytes in UTF-8. For a byte that does not begin a valid
/// character: U+FFFD and 1.
struct Character {
  uint32_t code = 0xFFFD;
  std::size_t bytes = 1;
};
Character first_of(std::string_view text);

/// Escapes text for element content and quoted attributes. Replaces what XML cannot hold (control
/// characters, broken UTF-8) and marks that change the direction of writing by U+FFFD.
std::string escaped(std::string_view text);

/// Returns the text if it has up to `most` characters. Otherwise returns its beginning and end with
/// an ellipsis between them, `most` characters in all.
std::string shortened(std::string_view text, std::size_t most);
/// Returns escaped(shortened(text, most)).
std::string brief(std::string_view text, std::size_t most);

/// Returns <tag attributes>content</tag>; attributes and content must be markup already.
std::string element(std::string_view tag, std::string_view attributes, std::string_view content);

/// A table in a box that scrolls by itself if the page is too narrow. Cells are markup.
class Table {
 public:
  /// The first `texts` columns are aligned left; the others hold numbers and are aligned right.
  explicit Table(std::vector<std::string> heads, std::size_t texts = 1);
  void row(const std::vector<std::string>& cells);
  std::size_t rows() const { return rows_; }
  /// Returns "" without rows.
  std::string text() const;

 private:
  std::size_t texts_, rows_ = 0;
  std::string head_, body_;
};

}  // namespace halftone::lab::html

// Pictures: plots, bars, intervals and maps as data. A picture is laid out once, as marks, which
// are then written as SVG or PDF; its numbers are written as CSV. Each mark has a title, which a
// browser shows under the pointer. Dashes, shapes and letters tell apart what colors tell apart.

namespace halftone::lab::svg {

/// How many styles curves and bars have, and how many background colors the cells of maps have.
inline constexpr int curve_styles = 10, map_levels = 9;

inline constexpr double automatic = std::numeric_limits<double>::quiet_NaN();

/// A point of a curve, with an interval around y if low and high are set. Intervals of neighboring
/// points make a band; that of a single point is drawn as a whisker.
struct Point {
  double x = 0, y = 0;  // not finite: a gap
  double low = automatic, high = automatic;
};

struct Axis {
  std::string label{};
  bool logarithmic = false;                  // numbers that are not above 0 are gaps
  double low = automatic, high = automatic;  // automatic: from the drawn numbers
};

/// A curve of a plot. `style` selects the color, dashes and shape. Curves with the same style and
/// name share a line of the legend; an empty name has no line there.
struct Curve {
  std::string name;
  std::vector<Point> points;
  int style = 0;
  bool staircase = false;  // horizontal from each point to the next
  bool shapes = true;
  bool wide = false;    // a wide pale line, on which another curve can be seen
  bool filled = false;  // fills the area below the staircase
};

/// A bar above the plot, from low to high, with a fainter part from faint_low to low. It shows a
/// format's range, or a range of steps. Neighboring ranges with the same name share a line.
struct Range {
  std::string name;
  double low = 0, high = 0, faint_low = automatic;
};

/// A straight line through the whole plot at x (vertical) or y = `at`.
struct Rule {
  std::string name;
  double at = 0;
  bool vertical = false;
};

struct Plot {
  std::string title;
  Axis x{}, y{};
  std::vector<Curve> curves{};
  std::vector<Range> ranges{};
  std::vector<Rule> rules{};
  int width = 480, height = 260;  // without the space that ranges and the legend add
};

/// A horizontal bar whose pieces are the parts of a sum. A piece with enough room shows its label
/// and its number.
struct Bar {
  std::string name;
  std::vector<double> parts;
};
struct Bars {
  std::string title, unit;
  std::vector<std::string> parts, labels;  // of each part: its name; a label of a letter or two
  std::vector<Bar> bars;
  int width = 480;
};

/// A row of a Forest: an interval around its middle, or the middle alone if `half` is not finite,
/// and a dot for each number of which the middle is the mean.
struct ForestRow {
  std::string name;
  double middle = 0, half = automatic;
  int style = 0;
  std::vector<double> dots{};
};
struct Forest {
  std::string title, unit, axis;  // unit: after each number; axis: below the axis
  std::vector<ForestRow> rows;
  int width = 480;
};

/// A number of a Map (a table of numbers with colored backgrounds).
struct Cell {
  double value = automatic;  // for the CSV
  std::string text{}, title{};
  double strength = -1;  // 0 to 1; below 0: no background
};
/// Cells in rows and columns. Neighboring columns of one group share a head.
struct Map {
  std::string title;
  std::vector<std::pair<std::string, std::string>> columns;  // group, head
  std::vector<std::pair<std::string, std::vector<Cell>>> rows;
  int width = 480;  // the least
};

using Picture = std::variant<Plot, Bars, Forest, Map>;

/// A command of a path, as in SVG, and its point in pixels.
struct Step {
  char kind;  // M, L, Z; O: a disc of the mark's radius
  double x = 0, y = 0;
};
/// A path or a text of a drawing.
struct Mark {
  std::string_view look;  // the name of a look in draw.cpp
  int style = 0;
  std::vector<Step> path{};  // of a text: its position
  std::string text{}, title{};
  std::string series{};  // what the mark shows, such as a policy
  char anchor = 's';     // s, m, e: start, middle, end
  double radius = 0;
  bool turned = false;
};
struct Drawing {
  std::string title{};
  double width = 0, height = 0;
  std::vector<Mark> marks{};
};
Drawing drawing_of(const Picture& picture);
/// Returns a drawing of a style's mark, as legends show it.
Drawing sample_of(int style);
/// Returns pictures in a grid `width` pixels wide, with two columns if there are more than three.
Drawing grid_of(const std::vector<Picture>& pictures, int width);

/// Where a drawing goes. page: into a page that has styles(). file: into a file with the colors of
/// the light and the dark scheme. light, dark: into a file with one scheme, for programs without
/// style sheets.
enum class Place { page, file, light, dark };
/// Returns the drawing as SVG, `millimetres` wide. 0: as wide as the drawing, in pixels.
std::string svg_of(const Drawing& drawing, Place place, double millimetres = 0);
/// Returns a PDF of one page with vector graphics and text in Helvetica, which it does not contain.
std::string pdf_of(const Drawing& drawing, bool dark, double millimetres);
/// Returns the header panel,series,x,y,low,high and a line for each number.
std::string csv_of(const std::vector<Picture>& pictures);
inline std::string draw(const Picture& picture, Place place = Place::page) {
  return svg_of(drawing_of(picture), place);
}

/// Returns the CSS rules that drawings of a page need: the colors of both schemes.
std::string styles();

/// Returns the positions of an axis's marks: about `wanted` marks, in steps of 1, 2 or 5 times a
/// power of ten. A logarithmic axis gets powers of ten and, if these are few, 2 and 5 times them.
std::vector<double> ticks(double low, double high, bool logarithmic, int wanted);
/// Returns the width of a text in Helvetica of `size`, in pixels.
double width_of(std::string_view text, double size);
/// Returns the text of a value for a title or an axis, with up to `digits` significant digits.
std::string label_of(double value, int digits = 4);

}  // namespace halftone::lab::svg

// Contents that several drawings share: sizes of numbers, ranges of formats, uses of memory.

namespace halftone::lab {

/// The formats whose ranges are drawn above histograms of sizes.
inline constexpr std::string_view shown_formats[] = {"f16", "bf16", "e4m3", "e5m2"};
/// Returns the range of a format in log2, from the smallest normal number to the largest; the paler
/// part goes down to the smallest subnormal.
svg::Range range_of_format(std::string_view format);
std::vector<svg::Range> ranges_of_formats();

/// Returns a histogram as a staircase, in percent of the sum of `counts`. counts[i] is for [lowest
/// + i, lowest + i + 1). The curve begins at the first bin, and ends at the last, that has at least
/// the share `visible` of the sum. It has no points if the sum is 0.
svg::Curve distribution(std::string name, std::span<const double> counts, int lowest, int style,
                        double visible = 0);

/// A part of a training's memory, with the same color in all drawings and tables.
struct MemoryPart {
  const char *name, *label;
  std::vector<std::string_view> uses;  // as name(MemoryUse) writes them
};
const std::vector<MemoryPart>& memory_parts();

}  // namespace halftone::lab
