// E19. Spikes of the loss under MX formats (arXiv 2506.20752): a residual MLP with everything that
// its operations read in MXFP8, weights of normalizations included, learns another one at a high
// rate. Spikes are counted in all steps. Mitigations of that paper are in the table: scales rounded
// up, and activations in bf16. A count of 0 is a refutation only with its power: the highest rate
// of spikes that would give 0 in 5 % of trainings.
#include <algorithm>
#include <cmath>
#include <deque>

#include <halftone/lab/experiments/experiments.h>
#include <halftone/lab/setting.h>
#include <halftone/lab/statistics.h>
#include <halftone/lab/table.h>
#include <halftone/lab/workload.h>

namespace halftone::lab {
namespace e19 {

constexpr int64_t window = 50;
constexpr double high = 3;  // a spike is a loss of as many times the median of the window before

struct Losses {
  int64_t spikes = 0, steps = 0;
  double late = 0;  // mean of the last tenth
};

Losses train(const amp::Strategy& strategy, uint64_t seed, double lr, int64_t steps) {
  Workload work = make_workload("residual_mlp", seed);
  work.lr = lr;
  const std::unique_ptr<optim::Optimizer> optimizer = optimizer_of(work);
  amp::Training training(strategy, *work.model, *optimizer);
  std::deque<double> before;
  Losses result{.steps = steps};
  int64_t calm = 0;  // steps since the last spike: one spike may last several steps
  train_steps(work, training, steps, [&](int64_t step, const Tensor& tensor) {
    const double loss = tensor.item();
    if (std::ssize(before) == window) {
      const double usual = median({before.begin(), before.end()});
      const bool spike = !(loss <= high * usual);
      result.spikes += spike && calm >= window;
      calm = spike ? 0 : calm + 1;
      before.pop_front();
    } else {
      ++calm;
    }
    before.push_back(loss);
    if (step >= steps - steps / 10) result.late += loss / double(steps / 10);
  });
  return result;
}

std::string mx_text(const char* rule, bool activations) {
  return R"("quantizers": {"mx": {"like": "mxfp8", "scale": {"per": "block", "block": [1, 32],
              "format": "e8m0", "rule": ")" +
         std::string(rule) + R"("}}},
            "rules": [{"match": {"op": ["linear", "layer_norm"]}, "weight": "mx")" +
         std::string(activations ? R"(, "input": "mx", "grad_output": "mx"}])" : "}]");
}

void run(Findings& found) {
  const uint64_t seeds = found.thorough() ? 16 : 4;
  const int64_t steps = found.thorough() ? 4000 : 1500;
  const std::vector<amp::Strategy> strategies{
      amp::Strategy::named("fp32"), policy_of("mxfp8, floor", "fp32", mx_text("floor", true)),
      policy_of("mxfp8, rceil", "fp32", mx_text("rceil", true)),
      policy_of("weights alone, floor", "fp32", mx_text("floor", false))};
  Table table({"rate", "policy", "spikes", "in steps", "at most one in, 95 %", "late loss",
               "against fp32"});
  for (const double lr : {3e-3, 1e-2, 3e-2}) {
    double base = 0;
    for (const amp::Strategy& strategy : strategies) {
      Losses all;
      std::vector<double> late;
      for (uint64_t seed = 0; seed < seeds; ++seed) {
        const Losses one = train(strategy, seed, lr, steps);
        all.spikes += one.spikes, all.steps += one.steps;
        late.push_back(one.late);
      }
      const double loss = median(late);
      if (strategy.name == "fp32") base = loss;
      // If a Poisson count is 0, its mean is below 3 with 95 %.
      table.row({number(lr), strategy.name, std::to_string(all.spikes), std::to_string(all.steps),
                 all.spikes == 0 ? std::to_string(all.steps / 3) : "", number(loss),
                 strategy.name == "fp32" ? "" : percent(loss / base - 1)});
      const std::string where = strategy.name + " at " + number(lr);
      found.at_most(where + ", spikes", double(all.spikes), 3);
      if (strategy.name != "fp32") found.at_least(where + ", loss over fp32's", loss / base, 1.02);
    }
  }
  found.out() << "a spike: a loss above " << number(high) << " times the median of the " << window
              << " steps before; medians of " << seeds << " seeds\n"
              << table;
}

}  // namespace e19

const Experiment found::e19{
    "E19",
    "A residual MLP of this size has no spikes of the loss under MX formats, with the stated power "
    "(arXiv 2506.20752 found spikes in longer trainings of larger models). MX formats cost loss at "
    "every rate.",
    e19::run};

}  // namespace halftone::lab
