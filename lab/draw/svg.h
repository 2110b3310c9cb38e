// Plots as SVG text: curves, bands, histograms, stacked bars. Everything is written out, so tests
// read it and no program is needed to make or to see it. Every mark has a <title>, which a browser
// shows under the pointer. Colours are CSS custom properties (--c0 to --c9), which follow the
// reader's light or dark scheme; dashes and shapes tell curves apart without them.
#pragma once

#include <limits>
#include <string>
#include <vector>

namespace halftone::lab::svg {

inline constexpr double automatic = std::numeric_limits<double>::quiet_NaN();

struct Point {
  double x = 0, y = 0;  // not finite: a gap
};

struct Axis {
  std::string label{};
  bool logarithmic = false;                  // numbers that are not above 0 are gaps
  double low = automatic, high = automatic;  // automatic: from what is drawn
};

/// `style` is the number of its colour, dashes and shape. Entries of one style and name share a
/// line of the legend; an empty name has none.
struct Curve {
  std::string name;
  std::vector<Point> points;
  int style = 0;
  bool staircase = false;  // level from each point to the next
  bool shapes = true;
};

/// Between two curves over the same x. Layers of a stack are bands on each other.
struct Band {
  std::string name;
  std::vector<double> x, low, high;
  int style = 0;
  bool staircase = false;
  bool faint = true;
};

/// Bars of one width beside each other from `first` on.
struct Histogram {
  std::string name;
  double first = 0, width = 1;
  std::vector<double> heights;
  int style = 0;
};

/// A bar above the plot, from low to high; fainter from `faint_low` to low. Formats' ranges.
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
  int width = 480, height = 260;  // without ranges and legend, which come on top of it
};

/// Parts of a sum as pieces of a horizontal bar. `labels` stand in the pieces that have room.
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

/// within a page, which has the styles; or a file of its own, which brings them
enum class Place { page, file };
std::string draw(const Plot& plot, Place place = Place::page);
std::string draw(const Bars& bars, Place place = Place::page);

/// The rules of CSS that drawings need: colours of both schemes, strokes, fills.
std::string styles();

/// Where an axis has its marks: steps of 1, 2 or 5 times a power of ten, about `wanted` of them; of
/// a logarithmic one powers of ten, and 2 and 5 times them where there are few.
std::vector<double> ticks(double low, double high, bool logarithmic, int wanted);

}  // namespace halftone::lab::svg
