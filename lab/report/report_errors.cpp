// Panel 6: what the errors of roundings consist of, one line per policy and role.
#include <algorithm>
#include <cmath>
#include <numbers>

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
  const double error = std::sqrt(errors.whole / double(errors.tensors));
  std::vector<std::string> cells{
      escaped(html::shortened(label, 60)), std::string(policy::name(role)),
      std::isfinite(errors.least) ? escaped(html::shortened(errors.least_at, 60)) : "",
      std::to_string(errors.tensors), fixed(100 * error, 2)};
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
         table.text();
}

}  // namespace halftone::lab
