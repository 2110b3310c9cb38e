// The building blocks of the drawings of svg.h: numbers, marks with titles, legends.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <halftone/lab/draw/svg.h>

namespace halftone::lab::svg {

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
