// The results of a probe: as JSON lines for programs, as two short lists for people.
#include <algorithm>
#include <cmath>
#include <map>
#include <ostream>
#include <tuple>

#include <nlohmann/json.hpp>

#include <halftone/core/error.h>
#include <halftone/policy/telemetry/probe.h>

namespace halftone::policy {

// --- for files

namespace {
// Infinities and NaN become null, because JSON has neither.
nlohmann::ordered_json object_of(const ProbeRow& row) {
  const SurveySums& s = row.survey.sums;
  nlohmann::ordered_json line{{"step", row.step}, {"site", row.site}, {"role", name(row.role)}};
  if (row.input > 0) line["input"] = row.input;
  line["quantizer"] = row.quantizer;
  if (row.scale != 0) line["scale"] = row.scale, line["ideal"] = row.ideal;
  line["loss_scale"] = row.loss_scale;
  for (const auto& [key, value] : {std::pair("count", s.count),
                                   {"zeros", s.zeros},
                                   {"infinite", s.infinite},
                                   {"nan", s.nan},
                                   {"to_zero", s.to_zero},
                                   {"subnormal", s.subnormal},
                                   {"saturated", s.saturated},
                                   {"to_infinity", s.to_infinity},
                                   {"changed", s.changed}})
    line[key] = int64_t(value);
  nlohmann::ordered_json binades = nlohmann::ordered_json::object();
  for (int i = 0; i < Survey::binades; ++i)
    if (const double count = row.survey.binade[std::size_t(i)]; count > 0)
      binades[std::to_string(i + Survey::lowest_exponent)] = int64_t(count);
  line["binades"] = std::move(binades);
  for (const auto& [key, value] : {std::pair("sum_x2", s.sum_x2),
                                   {"sum_e2", s.sum_e2},
                                   {"sum_e", s.sum_e},
                                   {"sum_abs_x", s.sum_abs_x},
                                   {"sum_relative", s.sum_relative},
                                   {"largest", s.largest},
                                   {"smallest", s.smallest}})
    line[key] = value;
  if (row.quantizer.empty()) return line;
  for (const auto& [key, value] : {std::pair("dead_x2", s.dead_x2),
                                   {"saturated_x2", s.saturated_x2},
                                   {"saturated_xe", s.saturated_xe},
                                   {"saturated_e2", s.saturated_e2},
                                   {"grid_x2", s.grid_x2},
                                   {"grid_xe", s.grid_xe},
                                   {"grid_e2", s.grid_e2}})
    if (value != 0) line[key] = value;
  const ErrorParts parts = row.survey.error_parts();
  line["error_parts"] = {{"scale", parts.scale},
                         {"dead_zone", parts.dead_zone},
                         {"grid", parts.grid},
                         {"saturation", parts.saturation}};
  if (is_gradient(row.role)) line["norm_to_noise"] = row.survey.norm_to_noise();
  if (row.flips.count > 0)
    line["flips"] = {{"count", int64_t(row.flips.count)},
                     {"flipped", int64_t(row.flips.flipped)},
                     {"returned", int64_t(row.flips.returned)}};
  return line;
}

nlohmann::ordered_json object_of(const UpdateRow& row) {
  nlohmann::ordered_json line{{"step", row.step}, {"parameter", row.parameter}};
  if (!row.state.empty()) line["state"] = row.state;
  line["form"] = row.form, line["dtype"] = name(row.dtype);
  const auto sums = [](const UpdateSums& s) {
    return nlohmann::ordered_json{{"count", int64_t(s.count)},
                                  {"lost", int64_t(s.lost)},
                                  {"du", s.du},
                                  {"uu", s.uu},
                                  {"ww", s.ww}};
  };
  line["stored"] = sums(row.stored), line["seen"] = sums(row.seen);
  nlohmann::ordered_json bins = nlohmann::ordered_json::object();
  for (int i = 0; i < UpdateRow::bins; ++i)
    if (const double count = row.by_ulp[std::size_t(i)]; count > 0)
      bins[std::to_string(i + UpdateRow::lowest_bin)] = int64_t(count);
  line["by_ulp"] = std::move(bins);
  return line;
}
}  // namespace

std::string json_lines(const std::vector<ProbeRow>& rows, const std::vector<UpdateRow>& updates) {
  std::string text;
  const auto replace = nlohmann::ordered_json::error_handler_t::replace;
  for (const ProbeRow& row : rows) text += object_of(row).dump(-1, ' ', false, replace) + "\n";
  for (const UpdateRow& row : updates) text += object_of(row).dump(-1, ' ', false, replace) + "\n";
  return text;
}

// --- for people

namespace {
struct Merged {
  const ProbeRow* row;
  Survey survey;
};

/// Merges the rows of one tensor in several steps.
std::vector<Merged> merged(const std::vector<ProbeRow>& rows) {
  std::vector<Merged> result;
  std::map<std::tuple<std::string, Role, std::size_t>, std::size_t> places;
  for (const ProbeRow& row : rows) {
    const auto [place, is_new] = places.try_emplace({row.site, row.role, row.input}, result.size());
    if (is_new) result.push_back({&row, row.survey});
    else result[place->second].survey.merge(row.survey);
  }
  return result;
}

void print_rows(std::ostream& out, std::string_view title, const std::vector<Merged>& rows) {
  std::size_t width = 4;
  for (const Merged& m : rows)
    width = std::max(width, m.row->site.size() + 1 + name(m.row->role).size());
  const auto cell = [&](std::string text, std::size_t wide) {
    text.insert(0, text.size() < wide ? wide - text.size() : 0, ' ');
    out << text;
  };
  out << title << '\n';
  for (const Merged& m : rows) {
    std::string where = m.row->site + ' ' + std::string(name(m.row->role));
    where.resize(std::max(where.size(), width), ' ');
    out << "  " << where;
    PlainText underflow, saturated, sqnr;
    underflow << std::round(1e4 * m.survey.underflow()) / 100 << " %";
    saturated << std::round(1e4 * m.survey.saturation()) / 100 << " %";
    sqnr << std::round(10 * m.survey.sqnr()) / 10 << " dB";
    cell(underflow.str(), 10), cell(saturated.str(), 10), cell(sqnr.str(), 11);
    out << "  " << m.row->quantizer << '\n';
  }
}
}  // namespace

std::ostream& operator<<(std::ostream& out, const Probe& probe) {
  std::vector<Merged> rounded = merged(probe.rows());
  std::erase_if(rounded, [](const Merged& m) { return m.row->quantizer.empty(); });
  const auto ten = [&](auto&& worse) {
    std::ranges::stable_sort(rounded, worse);
    return std::vector(rounded.begin(),
                       rounded.begin() + std::ptrdiff_t(std::min<std::size_t>(10, rounded.size())));
  };
  if (rounded.empty()) {
    out << "nothing was rounded in the sampled steps\n";
  } else {
    print_rows(out, "most underflow (x != 0 that became 0; saturated; signal to noise)",
               ten([](const Merged& a, const Merged& b) {
                 return a.survey.underflow() > b.survey.underflow();
               }));
    print_rows(out, "least signal to noise", ten([](const Merged& a, const Merged& b) {
                 return a.survey.sqnr() < b.survey.sqnr();
               }));
  }
  std::map<std::string, UpdateSums> sums;
  for (const UpdateRow& row : probe.updates()) sums[row.state].add(row.stored);
  for (const auto& [state, all] : sums) {
    PlainText text;
    text << "updates" << (state.empty() ? "" : " of " + state + ", on its grid") << ": "
         << 100 * all.lost_share() << " % lost, effective descent " << all.effective_descent()
         << ", |u| / |w| " << all.update_ratio();
    out << text.str() << '\n';
  }
  return out;
}

}  // namespace halftone::policy
