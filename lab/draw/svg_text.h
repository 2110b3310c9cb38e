// What the drawings of svg.h are put together from: numbers, marks with titles, legends.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <halftone/lab/draw/svg.h>

namespace halftone::lab::svg {

/// A coordinate, with one digit after the point where it has one.
std::string coordinate(double value);
/// A value in a title or at an axis, in up to so many digits.
std::string label_of(double value, int digits = 4);

/// <name attributes><title>title</title></name>
std::string mark(std::string_view name, const std::string& attributes, std::string_view title);
/// Plain text at a place; anchor: start, middle or end.
std::string words(double x, double y, std::string_view anchor, std::string_view text,
                  std::string_view more = "");
/// The path of a style's shape around a place.
std::string shape_path(int style, double x, double y, double radius);

struct LegendEntry {
  enum class Kind { line, area } kind = Kind::line;
  std::string name;
  int style = 0;
  std::string label{};  // in the area's sample
};
/// Rows of entries from `top` on; `height` grows by what they take.
std::string legend(const std::vector<LegendEntry>& entries, double left, double right, double top,
                   double& height);

/// <svg> around a drawing; a file brings its styles and names its language.
std::string document(int width, double height, std::string_view title, const std::string& content,
                     Place place);

}  // namespace halftone::lab::svg
