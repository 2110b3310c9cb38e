// Builds the curve in one pass over the bins.
#include <halftone/lab/draw/distribution.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include <halftone/core/formats/number_format.h>

namespace halftone::lab {

std::vector<svg::Range> ranges_of_formats(std::string_view own) {
  std::vector<std::string_view> names(std::begin(shown_formats), std::end(shown_formats));
  if (!own.empty() && std::ranges::find(names, own) == names.end()) names.push_back(own);
  std::vector<svg::Range> result;
  for (const std::string_view name : names) {
    const NumberFormat format = *number_format_named(name);
    result.push_back({std::string(name), double(format.min_exponent), std::log2(double(format.max)),
                      double(format.min_exponent - format.significand_bits + 1)});
  }
  return result;
}

svg::Curve distribution(std::string name, std::span<const double> counts, int lowest, int style,
                        double visible) {
  svg::Curve curve{.name = std::move(name), .points = {}, .style = style, .staircase = true};
  const double total = std::accumulate(counts.begin(), counts.end(), 0.0);
  const auto shown = [&](double count) { return count > 0 && count >= visible * total; };
  const auto first = std::ranges::find_if(counts, shown);
  if (first == counts.end()) return curve;
  auto end = counts.end();
  while (!shown(*std::prev(end))) --end;
  for (auto at = first; at != end; ++at)
    curve.points.push_back({double(lowest + (at - counts.begin())), 100 * *at / total});
  curve.points.push_back({double(lowest + (end - counts.begin())), 0});
  return curve;
}

}  // namespace halftone::lab
