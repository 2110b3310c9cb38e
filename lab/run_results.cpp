// Results of trainings: a table for people, JSON for programs.
#include <algorithm>
#include <cmath>
#include <sstream>

#include <halftone/lab/run.h>
#include <halftone/lab/statistics.h>
#include <halftone/lab/table.h>
#include <halftone/policy/json_value.h>

namespace halftone::lab {

namespace {
/// The difference that claims about number formats are about.
constexpr double claimed = 0.005;

/// A line if the seeds cannot tell a difference of half a percent.
std::string seeds_remark(const std::string& policy, const std::vector<double>& shares) {
  if (shares.size() < 2)
    return policy + ": one seed gives no interval. Use at least two, for example --seeds 0..7.\n";
  const double half = interval_of(shares).half;
  if (!(half > claimed) || !std::isfinite(half)) return "";
  const int64_t needed = pairs_needed(deviation_of(shares), std::ssize(shares), claimed);
  return policy + ": +- " + percent(half) + ", too few seeds for 0.5 %: about " +
         std::to_string(needed) + " needed (halftone-lab gate trains as many).\n";
}
}  // namespace

namespace {
/// The relative differences of a policy's losses from the first policy's, paired by seed.
std::vector<double> differences_of(const std::vector<RunResult>& runs, const std::string& policy) {
  std::vector<double> shares;
  for (const RunResult& own : runs)
    for (const RunResult& base : runs)
      if (own.policy == policy && base.policy == runs.front().policy && own.seed == base.seed)
        shares.push_back(relative_difference(own.loss, base.loss));
  return shares;
}
}  // namespace

std::string table_of(const std::vector<RunResult>& runs) {
  std::vector<std::string> policies;
  for (const RunResult& r : runs)
    if (std::ranges::find(policies, r.policy) == policies.end()) policies.push_back(r.policy);
  const auto of = [&](const std::string& policy) {
    std::vector<const RunResult*> own;
    for (const RunResult& r : runs)
      if (r.policy == policy) own.push_back(&r);
    return own;
  };
  Table table({"policy", "loss", "against " + policies.front() + ", 95 %", "ms/step", "skipped",
               "updates lost", "worst underflow", "", "least SQNR", ""});
  for (const std::string& policy : policies) {
    const std::vector<const RunResult*> own = of(policy);
    std::vector<double> losses, times;
    int64_t skipped = 0;
    policy::UpdateSums updates;
    const RunResult *under = own.front(), *noisy = own.front();
    for (std::size_t i = 0; i < own.size(); ++i) {
      losses.push_back(own[i]->loss), times.push_back(own[i]->milliseconds);
      skipped += own[i]->skipped;
      updates.add(own[i]->updates);
      if (own[i]->worst_underflow > under->worst_underflow) under = own[i];
      if (own[i]->least_sqnr < noisy->least_sqnr) noisy = own[i];
    }
    const std::vector<double> shares = differences_of(runs, policy);
    const Interval difference = interval_of(shares);
    const bool paired = policy != policies.front() && !shares.empty();
    std::string against = paired ? percent(difference.mean) : "";
    if (!against.empty() && std::isfinite(difference.half))
      against += " +- " + percent(difference.half);
    const bool watched = std::isfinite(noisy->least_sqnr);
    table.row({policy, number(interval_of(losses).mean), against, number(median(times), 3),
               std::to_string(skipped), updates.count > 0 ? percent(updates.lost_share()) : "",
               watched ? percent(under->worst_underflow) : "", under->worst_site,
               watched ? fixed(noisy->least_sqnr, 1) + " dB" : "", noisy->least_sqnr_site});
  }
  std::ostringstream text;
  text << table;
  return text.str();
}

std::string remarks_on(const std::vector<RunResult>& runs) {
  std::string remarks;
  std::vector<std::string> seen;
  for (const RunResult& r : runs) {
    if (std::ranges::find(seen, r.policy) != seen.end()) continue;
    seen.push_back(r.policy);
    const std::vector<double> shares = differences_of(runs, r.policy);
    if (r.policy != runs.front().policy && !shares.empty())
      remarks += seeds_remark(r.policy, shares);
  }
  return remarks;
}

std::string json_of(const std::vector<RunResult>& runs) {
  policy::Json all = policy::Json::array();
  for (const RunResult& run : runs) all.push_back(policy::parsed_json("run", run.summary));
  return policy::Json{{"format", 1}, {"runs", std::move(all)}}.dump(1) + "\n";
}

}  // namespace halftone::lab
