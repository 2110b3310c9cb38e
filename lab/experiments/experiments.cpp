// Runs of several policies by lab::run(), as a table.
#include <atomic>
#include <numeric>
#include <ostream>

#include <unistd.h>

#include <halftone/core/files.h>
#include <halftone/lab/experiments/paired.h>
#include <halftone/lab/table.h>

namespace halftone::lab {

PolicyOnDisk::PolicyOnDisk(policy::PolicyFile policy) {
  static std::atomic<int> count{0};
  path_ = std::filesystem::temp_directory_path() /
          ("halftone-experiment-" + std::to_string(getpid()) + "-" + std::to_string(count++)) /
          (policy.base.name + ".json");
  std::filesystem::create_directories(path_.parent_path());
  files::replace("experiment", path_, policy::write(policy));
}

PolicyOnDisk::~PolicyOnDisk() {
  std::error_code ignored;
  std::filesystem::remove_all(path_.parent_path(), ignored);
}

std::string signed_percent(const Interval& interval) {
  const auto text = [](double share) { return fixed(100 * share, 2) + " %"; };
  return (interval.mean > 0 ? "+" : "") + text(interval.mean) + " +- " + text(interval.half);
}

std::vector<RunResult> all_runs(const RunOptions& options) {
  std::ostream silent(nullptr);
  std::vector<RunResult> runs = lab::run(options, {}, silent);
  if (const std::size_t wanted = options.policies.size() * options.seeds.size();
      runs.size() < wanted)
    fail<Stopped>("experiment", "stopped after ", runs.size(), " of ", wanted,
                  " runs. Start it again for a result.");
  return runs;
}

PairedRuns::PairedRuns(Findings& found, const std::string& workload,
                       const std::vector<std::string>& policies, std::size_t seeds, int64_t steps)
    : policies_(policies.size()), seeds_(seeds) {
  RunOptions options{.workload = workload, .policies = policies, .steps = steps};
  options.seeds.resize(seeds);
  std::iota(options.seeds.begin(), options.seeds.end(), 0);
  runs_ = all_runs(options);
  Table table({"policy", "late loss", "against " + run(0, 0).policy + ", 95 %"});
  for (std::size_t p = 0; p < policies_; ++p) {
    double loss = 0;
    for (std::size_t s = 0; s < seeds_; ++s) loss += run(p, s).late_loss / double(seeds_);
    table.row({run(p, 0).policy, fixed(loss, 4), p == 0 ? "" : signed_percent(difference(p))});
  }
  found.out() << workload << ", " << seeds << " seeds, " << steps << " steps\n" << table;
}

// The policies alternate, with the same seed.
const RunResult& PairedRuns::run(std::size_t policy, std::size_t seed) const {
  return runs_.at(seed * policies_ + policy);
}

Interval PairedRuns::difference(std::size_t policy, std::size_t base) const {
  std::vector<double> differences;
  for (std::size_t s = 0; s < seeds_; ++s)
    differences.push_back(run(policy, s).late_loss / run(base, s).late_loss - 1);
  return interval_of(differences);
}

}  // namespace halftone::lab
