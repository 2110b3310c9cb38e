// Pieces of pages: HTML, and drawings in SVG.
#pragma once

#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace halftone::lab::html {

// Pieces of a page as text: escaping, tables, heat maps. The output is both HTML and well-formed
// XML, and no text from a file becomes markup.

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

// Plots as SVG text: curves, bands, histograms, stacked bars. Everything is written out, so tests
// read it and no program is needed to make or to see it. Every mark has a <title>, which a browser
// shows under the pointer. Colors are CSS custom properties (--c0 to --c9), which follow the
// reader's light or dark scheme; dashes and shapes also distinguish the curves.

namespace halftone::lab::svg {

inline constexpr double automatic = std::numeric_limits<double>::quiet_NaN();

struct Point {
  double x = 0, y = 0;  // not finite: a gap
};

struct Axis {
  std::string label{};
  bool logarithmic = false;                  // numbers that are not above 0 are gaps
  double low = automatic, high = automatic;  // automatic: from the drawn numbers
};

/// `style` selects the color, dashes and shape. Entries with the same style and name share a line
/// of the legend; an empty name has none.
struct Curve {
  std::string name;
  std::vector<Point> points;
  int style = 0;
  bool staircase = false;  // level from each point to the next
  bool shapes = true;
  bool wide = false;  // a wide pale line, on which another curve can be seen
};

/// The area between two curves over the same x. A stack is drawn as one band per layer.
struct Band {
  std::string name;
  std::vector<double> x, low, high;
  int style = 0;
  bool staircase = false;
  bool faint = true;
};

/// Bars of one width, side by side, starting at `first`.
struct Histogram {
  std::string name;
  double first = 0, width = 1;
  std::vector<double> heights;
  int style = 0;
};

/// A bar above the plot, from low to high; fainter from `faint_low` to low. Shows a format's range.
struct Range {
  std::string name;
  double low = 0, high = 0, faint_low = automatic;
};

/// A straight line over the whole plot.
struct Rule {
  std::string name;
  double at = 0;
  bool vertical = false;
};

struct Plot {
  std::string title;
  Axis x{}, y{};
  std::vector<Curve> curves{};
  std::vector<Band> bands{};
  std::vector<Histogram> histograms{};
  std::vector<Range> ranges{};
  std::vector<Rule> rules{};
  int width = 480, height = 260;  // without the space that ranges and the legend add
};

/// A horizontal bar whose pieces are the parts of a sum. A piece shows its label if it has room.
struct Bar {
  std::string name;
  std::vector<double> parts;
};
struct Bars {
  std::string title, unit;
  std::vector<std::string> parts, labels;  // names; a letter or two
  std::vector<Bar> bars;
  int width = 480;
};

/// An interval around its middle; a half width that is not finite shows the middle alone.
struct ForestRow {
  std::string name;
  double middle = 0, half = automatic;
  int style = 0;
};
struct Forest {
  std::string title, unit, axis;  // unit: after each number; axis: below the axis
  std::vector<ForestRow> rows;
  int width = 480;
};

/// page: part of a page, which has the styles; file: a separate file, which contains them
enum class Place { page, file };
std::string draw(const Plot& plot, Place place = Place::page);
std::string draw(const Bars& bars, Place place = Place::page);
std::string draw(const Forest& forest, Place place = Place::page);

/// Returns the CSS rules that drawings need: colors of both schemes, strokes, fills.
std::string styles();

/// Returns the positions of an axis's marks: about `wanted` steps of 1, 2 or 5 times a power of
/// ten. A logarithmic axis gets powers of ten, and also 2 and 5 times them if there are few.
std::vector<double> ticks(double low, double high, bool logarithmic, int wanted);

// The building blocks of these drawings: numbers, marks with titles, legends.

/// Returns a coordinate with at most one digit after the point.
std::string coordinate(double value);
/// Returns a value for a title or an axis, with up to `digits` significant digits.
std::string label_of(double value, int digits = 4);

/// Returns <name attributes><title>title</title></name>.
std::string mark(std::string_view name, const std::string& attributes, std::string_view title);
/// Returns plain text at a position. `anchor`: start, middle or end.
std::string words(double x, double y, std::string_view anchor, std::string_view text,
                  std::string_view more = "");
/// Returns the path of a style's shape around a position.
std::string shape_path(int style, double x, double y, double radius);

struct LegendEntry {
  enum class Kind { line, area } kind = Kind::line;
  std::string name;
  int style = 0;
  std::string label{};  // text in the area's sample
};
/// Returns rows of legend entries from `top` on, and adds their height to `height`.
std::string legend(const std::vector<LegendEntry>& entries, double left, double right, double top,
                   double& height);

/// Wraps a drawing in <svg>. A file also contains the styles and its namespace.
std::string document(int width, double height, std::string_view title, const std::string& content,
                     Place place);

}  // namespace halftone::lab::svg

// Sizes of numbers for drawings: how many numbers each binade has, and the ranges of formats.

namespace halftone::lab {

/// The formats whose ranges are drawn above histograms of sizes.
inline constexpr std::string_view shown_formats[] = {"f16", "bf16", "e4m3", "e5m2"};
/// Returns the range of each shown format in log2, from the smallest normal number to the largest;
/// the paler part goes down to the smallest subnormal. `own` names one more format; "": none.
std::vector<svg::Range> ranges_of_formats(std::string_view own = "");

/// Returns a staircase in percent of the sum of `counts`. counts[0] is for [lowest, lowest + 1).
/// The curve starts at the first bin that has at least the share `visible` of the sum, and ends at
/// the last one. It has no points if the sum is 0.
svg::Curve distribution(std::string name, std::span<const double> counts, int lowest, int style,
                        double visible = 0);

}  // namespace halftone::lab
