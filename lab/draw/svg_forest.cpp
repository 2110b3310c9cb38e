// Intervals as horizontal bars around their middle, one row each: a forest plot.
#include <algorithm>
#include <cmath>

#include <halftone/lab/draw/html.h>
#include <halftone/lab/draw/svg_text.h>

namespace halftone::lab::svg {

namespace {

/// The range of all rows, with 0.
struct Extent {
  double low = 0, high = 0;
  void add(double value) {
    if (std::isfinite(value)) low = std::min(low, value), high = std::max(high, value);
  }
};

std::string line(const char* kind, double x1, double y1, double x2, double y2) {
  return std::string("<path class=\"") + kind + "\" d=\"M" + coordinate(x1) + " " + coordinate(y1) +
         "L" + coordinate(x2) + " " + coordinate(y2) + "\"/>\n";
}

}  // namespace

std::string draw(const Forest& forest, Place place) {
  const double left = 16, right = forest.width - 16, row_height = 34;
  Extent extent;
  for (const ForestRow& row : forest.rows)
    extent.add(row.middle), extent.add(row.middle - row.half), extent.add(row.middle + row.half);
  const double room = std::max(extent.high - extent.low, 1e-12) * 0.05;
  extent.low -= room, extent.high += room;
  const auto place_of = [&](double value) {
    return left + (value - extent.low) / (extent.high - extent.low) * (right - left);
  };
  std::string text = words(left, 16, "start", html::shortened(forest.title, 64), "class=\"head\"");
  const double top = 30, bottom = top + row_height * double(forest.rows.size());
  for (const double tick : ticks(extent.low, extent.high, false, 6)) {
    text += line(tick == 0 ? "rule" : "grid", place_of(tick), top, place_of(tick), bottom);
    text += words(place_of(tick), bottom + 14, "middle", label_of(tick), "class=\"small\"");
  }
  double y = top;
  for (const ForestRow& row : forest.rows) {
    const bool wide = !std::isfinite(row.half);
    const std::string value = (row.middle > 0 ? "+" : "") + label_of(row.middle, 3) +
                              (wide ? "" : " ± " + label_of(row.half, 2)) + " " + forest.unit;
    text += words(left, y + 12, "start", html::shortened(row.name, 48), "class=\"over\"");
    text += words(right, y + 12, "end", value, "class=\"small over\"");
    const std::string style = std::to_string(row.style % 10);
    const double middle = place_of(row.middle), at = y + 23;
    if (!wide)
      text += mark("path",
                   "class=\"l l" + style + "\" d=\"M" +
                       coordinate(place_of(row.middle - row.half)) + " " + coordinate(at) + "L" +
                       coordinate(place_of(row.middle + row.half)) + " " + coordinate(at) + "\"",
                   row.name + ": " + value);
    text +=
        mark("path", "class=\"f" + style + "\" d=\"" + shape_path(row.style, middle, at, 4) + "\"",
             row.name + ": " + value);
    y += row_height;
  }
  text += words((left + right) / 2, bottom + 30, "middle", forest.axis, "class=\"small\"");
  return document(forest.width, bottom + 38, forest.title, text, place);
}

}  // namespace halftone::lab::svg
