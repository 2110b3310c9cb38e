// Panel 6: what the errors of roundings consist of, one line per policy and role.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>
#include <set>

#include <halftone/lab/draw/html.h>
#include <halftone/lab/report/report_page.h>
#include <halftone/lab/table.h>

namespace halftone::lab {

using html::escaped;

namespace {

constexpr std::size_t most_lines = 100;
constexpr double stalls_below = std::numbers::sqrt3;

/// The rounded tensors of one role under one policy.
struct RoleErrors {
  std::size_t tensors = 0, below = 0;  // all; gradients below the line
  /// Sums over tensors, where the errors of each are divided by its sum of x^2.
  double whole = 0;
  ErrorParts parts{};
  double least = HUGE_VAL;  // of norm_to_noise
  std::string least_at{};
  policy::WeightFlips flips{};

  /// Returns the root of the mean squared relative error.
  double size() const { return std::sqrt(whole / double(tensors)); }

  void add(const std::string& site, policy::Role role, const ReportTensor& tensor) {
    const SurveySums& s = tensor.survey.sums;
    const ErrorParts own = tensor.survey.error_parts();
    if (!(s.sum_x2 > 0) || std::isnan(own.scale)) return;
    ++tensors, whole += s.sum_e2 / s.sum_x2;
    parts.scale += own.scale / s.sum_x2, parts.dead_zone += own.dead_zone / s.sum_x2;
    parts.grid += own.grid / s.sum_x2, parts.saturation += own.saturation / s.sum_x2;
    flips.merge(tensor.flips);
    if (!policy::is_gradient(role)) return;
    const double ratio = tensor.survey.norm_to_noise();
    if (ratio < stalls_below) ++below;
    if (ratio < least) least = ratio, least_at = site;
  }
};

std::string share_text(double part, double whole) {
  return whole > 0 ? fixed(100 * part / whole, 1) : "-";
}

std::vector<std::string> line_of(const std::string& label, policy::Role role,
                                 const RoleErrors& errors) {
  std::vector<std::string> cells{
      escaped(html::shortened(label, 60)), std::string(policy::name(role)),
      std::isfinite(errors.least) ? escaped(html::shortened(errors.least_at, 60)) : "",
      std::to_string(errors.tensors), fixed(100 * errors.size(), 2)};
  for (const double part :
       {errors.parts.scale, errors.parts.dead_zone, errors.parts.grid, errors.parts.saturation})
    cells.push_back(share_text(part, errors.whole));
  cells.push_back(std::isfinite(errors.least) ? number(errors.least, 3) : "");
  cells.push_back(policy::is_gradient(role) ? std::to_string(errors.below) : "");
  const bool flips = errors.flips.count > 0;
  cells.push_back(flips ? fixed(100 * errors.flips.flipped_share(), 2) : "");
  cells.push_back(flips ? fixed(100 * errors.flips.oscillation(), 2) : "");
  return cells;
}

/// Returns the first number in the path of a site's module, which is the number of its block or
/// layer.
std::optional<int> block_of(const std::string& site) {
  const std::string path = site.substr(0, site.find('/'));
  for (std::size_t at = 0; at < path.size(); ++at)
    if (const std::size_t digits = number_at(path, at); digits > 0 && digits < 6)
      return std::stoi(path.substr(at, digits));
  return {};
}

/// Draws the relative error of the sites of one block over the block's number, for one role.
std::string errors_by_block(const std::vector<const ReportGroup*>& groups, policy::Role role) {
  svg::Plot plot{.title = "error of " + std::string(policy::name(role)) + " by block"};
  plot.x.label = "number of the block or layer", plot.y.label = "error, percent";
  plot.y.low = 0;
  std::set<int> blocks;
  for (const ReportGroup* group : groups) {
    std::map<int, RoleErrors> errors;
    for (const auto& [place, tensor] : group->tensors)
      if (const auto block = block_of(place.first);
          block && place.second == role && !tensor.quantizer.empty())
        errors[*block].add(place.first, role, tensor);
    svg::Curve curve{.name = group->label, .points = {}, .style = group->style};
    for (const auto& [block, sums] : errors)
      if (sums.tensors > 0) {
        curve.points.push_back({double(block), 100 * sums.size()});
        blocks.insert(block);
      }
    if (!curve.points.empty() && plot.curves.size() < 8) plot.curves.push_back(std::move(curve));
  }
  return blocks.size() < 2 ? "" : svg::draw(plot);
}

std::string block_figures(const ReportData& data) {
  std::vector<std::string> drawings;
  for (const auto& groups : data.by_workload())
    for (const policy::Role role :
         {policy::Role::input, policy::Role::weight, policy::Role::grad_output})
      if (drawings.size() < 6) drawings.push_back(errors_by_block(groups, role));
  return figures(drawings);
}

}  // namespace

std::string error_panel(const ReportData& data) {
  html::Table table({"policy", "role", "least norm / noise at", "tensors", "error, %",
                     defined("scale, %", "error-parts"), defined("dead zone, %", "error-parts"),
                     defined("grid, %", "error-parts"), defined("saturation, %", "error-parts"),
                     defined("norm / noise", "norm-to-noise"), "below √3",
                     defined("flipped, %", "oscillation"), defined("and back, %", "oscillation")},
                    3);
  for (const ReportGroup& group : data.groups) {
    std::map<policy::Role, RoleErrors> roles;
    for (const auto& [place, tensor] : group.tensors)
      if (!tensor.quantizer.empty()) roles[place.second].add(place.first, place.second, tensor);
    for (const auto& [role, errors] : roles)
      if (errors.tensors > 0 && table.rows() < most_lines)
        table.row(line_of(group.label, role, errors));
  }
  if (table.rows() == 0)
    return absent("No parts of errors are here",
                  "halftone-lab run POLICY... --probe 50 --out runs");
  return paragraph(
             "All sites, seeds and sampled steps of a role together, each tensor's error relative "
             "to its size. The four parts are shares of the squared error.") +
         block_figures(data) + table.text();
}

}  // namespace halftone::lab
