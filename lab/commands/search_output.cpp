// Prints the result of a search: tables for people, JSON for the report.
#include <algorithm>
#include <cmath>
#include <sstream>

#include <nlohmann/json.hpp>

#include <halftone/lab/search.h>
#include <halftone/lab/table.h>

namespace halftone::lab {

namespace {

using Json = nlohmann::ordered_json;

constexpr double mebibyte = 1 << 20;

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text.empty() ? "none" : text;
}

std::string signed_number(double value, int digits) {
  return (value > 0 ? "+" : "") + fixed(value, digits);
}

Json json_of(const Measurement& measured) {
  return {{"error", measured.error},           {"added", measured.added},
          {"loss_error", measured.loss_error}, {"milliseconds", measured.milliseconds},
          {"bytes", measured.bytes},           {"bits", measured.bits}};
}

Json json_of(const std::vector<Candidate>& candidates) {
  Json list = Json::array();
  for (const Candidate& candidate : candidates) {
    Json one{{"name", candidate.rule.name}};
    if (candidate.refused.empty()) one.update(json_of(candidate.measured));
    else one["refused"] = candidate.refused;
    list.push_back(std::move(one));
  }
  return list;
}

const char* word_of(Objective objective) {
  switch (objective) {
    case Objective::bytes: return "bytes";
    case Objective::time: return "time";
    case Objective::bits: return "bits";
  }
  return "";
}

}  // namespace

std::string table_of(const std::vector<Candidate>& candidates, const Measurement& base) {
  std::vector<const Candidate*> order;
  for (const Candidate& candidate : candidates) order.push_back(&candidate);
  std::ranges::stable_sort(order, {}, [](const Candidate* candidate) {
    return candidate->refused.empty() ? candidate->measured.added
                                      : std::numeric_limits<double>::infinity();
  });
  Table table({"rule", "adds to gradients", "loss error", "ms", "kept MiB", "bits"});
  table.row({"(the base)", percent(base.error), number(base.loss_error, 2),
             fixed(base.milliseconds, 2), fixed(base.bytes / mebibyte, 2), fixed(base.bits, 2)});
  for (const Candidate* candidate : order) {
    const Measurement& measured = candidate->measured;
    if (!candidate->refused.empty()) table.row({candidate->rule.name, candidate->refused});
    else
      table.row({candidate->rule.name, percent(measured.added), number(measured.loss_error, 2),
                 signed_number(measured.milliseconds - base.milliseconds, 2),
                 signed_number((measured.bytes - base.bytes) / mebibyte, 2),
                 signed_number(measured.bits - base.bits, 2)});
  }
  std::ostringstream text;
  text << table;
  return text.str();
}

std::string table_of(const Found& found, const SearchOptions& options) {
  const double whole = cost_of(found.base, options.objective);
  const auto share = [&](const Measurement& measured) {
    return percent(whole > 0 ? cost_of(measured, options.objective) / whole - 1 : 0);
  };
  Table frontier({"rules", "last one", "predicted", "measured", word_of(options.objective)});
  for (const FrontierPoint& point : found.frontier)
    frontier.row({std::to_string(point.names.size()), point.names.back(), percent(point.predicted),
                  percent(point.measured.added), share(point.measured)});
  std::ostringstream text;
  text << "the frontier: what the first rules add to the gradients' error together, and what they "
          "save\n"
       << frontier << "\nchosen: " << joined(found.chosen) << '\n';
  if (!found.dropped.empty()) text << "dropped: " << joined(found.dropped) << '\n';
  text << "error added: predicted " << percent(found.predicted) << ", measured "
       << percent(found.measured.added) << ", budget " << percent(options.budget)
       << "; against the reference " << percent(found.measured.error) << ", of the base "
       << percent(found.base.error)
       << "\nkept from forward to backward: " << fixed(found.base.bytes / mebibyte, 2) << " -> "
       << fixed(found.measured.bytes / mebibyte, 2) << " MiB; pass "
       << fixed(found.base.milliseconds, 2) << " -> " << fixed(found.measured.milliseconds, 2)
       << " ms; bits of operands " << fixed(found.base.bits, 2) << " -> "
       << fixed(found.measured.bits, 2) << '\n';
  return text.str();
}

std::string json_of(const std::vector<Candidate>& candidates, const Measurement& base) {
  return Json{{"format", 1}, {"base", json_of(base)}, {"candidates", json_of(candidates)}}.dump(1) +
         "\n";
}

std::string json_of(const Found& found, const SearchOptions& options) {
  Json json{{"format", 1},
            {"objective", word_of(options.objective)},
            {"budget", options.budget},
            {"base", json_of(found.base)},
            {"predicted", found.predicted},
            {"measured", json_of(found.measured)},
            {"chosen", found.chosen},
            {"dropped", found.dropped}};
  json["candidates"] = json_of(found.candidates);
  json["frontier"] = Json::array();
  for (const FrontierPoint& point : found.frontier) {
    Json one{{"names", point.names}, {"predicted", point.predicted}};
    one.update(json_of(point.measured));
    json["frontier"].push_back(std::move(one));
  }
  return json.dump(1) + "\n";
}

}  // namespace halftone::lab
