// E16. Searches the operations of gpt_tiny (lab/workload.h), starting from PyTorch's list
// for CUDA: which more operations may run in bf16 for an error of 2 % in the gradients? Then both
// policies train from the same seeds; the result is the difference of their losses, with its
// interval.
#include <algorithm>
#include <ostream>

#include <halftone/lab/experiments/experiments.h>
#include <halftone/lab/experiments/paired.h>
#include <halftone/lab/run.h>
#include <halftone/lab/search.h>
#include <halftone/lab/search_space.h>
#include <halftone/lab/statistics.h>
#include <halftone/lab/table.h>

namespace halftone::lab {
namespace e16 {

constexpr const char* workload = "gpt_tiny";

void run(Findings& f) {
  const policy::PolicyFile base = policy::file_of(amp::Strategy::named("amp-bf16"));
  Trial trial([] { return make_workload(workload); }, amp::Strategy::named("fp32"));
  const Measurement of_base = trial.set_base(base);
  const auto space = search_space("ops", "low", base, make_workload(workload));
  const SearchOptions options{.objective = Objective::bytes, .budget = 0.02};
  std::ostream silent(nullptr);
  std::vector<Candidate> candidates = sensitivity(trial, base, space, silent);
  f.out() << table_of(candidates, of_base) << '\n';
  const Found found = search(trial, base, of_base, std::move(candidates), options, silent);
  f.out() << table_of(found, options) << '\n';

  policy::PolicyFile chosen = found.policy;
  chosen.base.name = "found";
  const PolicyOnDisk file(chosen);
  const std::vector<uint64_t> seeds{0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  const std::vector<RunResult> runs = all_runs({.workload = workload,
                                                .policies = {"amp-bf16", file.path()},
                                                .seeds = seeds,
                                                .steps = f.thorough() ? 600 : 200});
  f.out() << table_of(runs) << '\n';
  std::vector<double> differences, ratios, base_times, found_times;
  for (std::size_t i = 0; i + 1 < runs.size(); i += 2) {  // the two policies alternate, with the
                                                          // same seed
    differences.push_back(runs[i + 1].loss / runs[i].loss - 1);
    ratios.push_back(runs[i + 1].milliseconds / runs[i].milliseconds);
    base_times.push_back(runs[i].milliseconds);
    found_times.push_back(runs[i + 1].milliseconds);
  }
  f.out() << "ms per step over the list's: " << fixed(median(ratios), 3)
          << ", median of the pairs\n";
  const Interval difference = interval_of(differences);
  f.at_most("bytes kept, found over list", found.measured.bytes / of_base.bytes, 0.9);
  f.at_most("loss beyond the list's, upper end of 95 %", difference.mean + difference.half, 0.005);
  f.at_most("ms per step over the list's, least of the pairs", std::ranges::min(ratios), 1.0);
  // Noise only adds time; the least times still have noise of about 1 %.
  f.at_most("ms per step over the list's, of the least times",
            std::ranges::min(found_times) / std::ranges::min(base_times), 1.01);
  f.within("measured over predicted error", found.measured.added / found.predicted, 0.5, 2);
  // For one rule, both numbers are the same measurement; for all rules that save something, they
  // are not.
  const FrontierPoint& all = found.frontier.back();
  f.at_least("rules that save something", double(all.names.size()), 2);
  f.within("measured over predicted error of all of them", all.measured.added / all.predicted, 0.5,
           2);
}

}  // namespace e16

const Experiment found::e16{
    "E16",
    "A search over rules finds a policy that trains no worse than the hand-made list for CUDA and "
    "keeps at least 10 % fewer bytes from forward to backward (HAWQ-V2, arXiv 1911.03852, also "
    "ranks by sensitivity).",
    e16::run};

}  // namespace halftone::lab
