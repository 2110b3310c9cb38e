// E4. Trains gpt_tiny (lab/workload.h) with four kinds of weight updates, from the same
// seeds. Shows differences of the losses with their intervals, and the bytes per parameter,
// computed from shapes alone. Weights rounded to nearest are shown but not judged: at this
// workload's rate few updates are lost (E14).
#include <ostream>

#include <halftone/amp/strategy.h>
#include <halftone/lab/experiments/experiments.h>
#include <halftone/lab/experiments/paired.h>
#include <halftone/lab/run.h>
#include <halftone/lab/statistics.h>
#include <halftone/lab/table.h>

namespace halftone::lab {
namespace e04 {

constexpr const char* workload = "gpt_tiny";
const std::vector<std::string> strategies{"o2-bf16", "full-bf16-sr", "full-bf16-kahan",
                                          "full-bf16"};

/// Returns the bytes of weights and the tensors stored with them, without AdamW's states.
double bytes_per_parameter(const std::string& strategy) {
  const Workload work = make_workload(workload);
  const std::unique_ptr<optim::Optimizer> optimizer = optimizer_of(work);
  const amp::StrategyBytes bytes =
      amp::predicted_bytes(amp::Strategy::named(strategy), *work.model, *optimizer);
  return double(bytes.parameter + bytes.companion) / double(work.model->parameter_count());
}

void run(Findings& found) {
  std::vector<uint64_t> seeds{0, 1, 2};
  if (found.thorough()) seeds.insert(seeds.end(), {3, 4});
  const std::vector<RunResult> runs = all_runs({.workload = workload,
                                                .policies = strategies,
                                                .seeds = seeds,
                                                .steps = found.thorough() ? 600 : 200});
  Table table({"strategy", "loss", "against masters, 95 %", "bytes of a weight"});
  for (std::size_t i = 0; i < strategies.size(); ++i) {
    std::vector<double> losses, differences;
    for (std::size_t j = 0; j < seeds.size(); ++j) {
      const std::size_t base = j * strategies.size();
      losses.push_back(runs[base + i].loss);
      differences.push_back(runs[base + i].loss / runs[base].loss - 1);
    }
    const Interval difference = interval_of(differences);
    const double bytes = bytes_per_parameter(strategies[i]);
    table.row({strategies[i], number(interval_of(losses).mean),
               i == 0 ? "" : percent(difference.mean) + " +- " + percent(difference.half),
               fixed(bytes, 2)});
    const double wanted[]{6, 2, 4, 2};
    found.exactly(strategies[i] + ", bytes of a weight", bytes, wanted[i]);
    if (strategies[i] != "full-bf16" && i > 0)
      found.within(strategies[i] + ", mean difference", difference.mean, -0.01, 0.01);
  }
  found.out() << table;
}

}  // namespace e04

const Experiment found::e4{"E4",
                           "Stochastic rounding and Kahan summation of bf16 weights train as f32 "
                           "masters do, and differ in "
                           "bytes: 2, 4 and 6 a weight (Zamirai et al. 2020, arXiv 2010.06192).",
                           e04::run};

}  // namespace halftone::lab
