// E23. Weights that forward rounds to MXFP4 oscillate: late in a training more of the numbers that
// move to another point of the grid move back at once (TetraJet, arXiv 2502.20853). Rounding by an
// average of the weight over the steps (Q-EMA) prevents that. The experiment counts both in three
// phases, with a constant rate and with a rate that falls to 0, and compares the losses with those
// of unrounded weights.
#include <cmath>

#include <halftone/lab/experiments/experiments.h>
#include <halftone/lab/setting.h>
#include <halftone/lab/statistics.h>
#include <halftone/lab/table.h>
#include <halftone/lab/workload.h>
#include <halftone/lab/workloads/choices.h>
#include <halftone/policy/probe.h>

namespace halftone::lab {
namespace e23 {

constexpr int phases = 3;

struct Run {
  policy::WeightFlips flips[phases]{};
  double loss = 0;  // mean of the last tenth
};

Run train(const amp::Strategy& strategy, const std::string& schedule, uint64_t seed,
          int64_t steps) {
  Workload work = make_workload("residual_mlp", seed);
  choose(work, {.schedule = schedule});
  const std::unique_ptr<optim::Optimizer> optimizer = optimizer_of(work);
  amp::Training training(policy::watched(strategy), *work.model, *optimizer);
  const double rate = work.lr;
  const optim::LrSchedule rates = work.schedule(steps);
  // Every step in a row, because a number flips back within a few steps.
  policy::Probe probe(training, {.every = 1, .roles = {policy::Role::weight}, .updates = true});
  Run run;
  train_steps(work, training, steps, [&](int64_t step, const Tensor& loss) {
    for (const policy::ProbeRow& row : probe.rows())
      run.flips[std::min<int64_t>(phases - 1, row.step * phases / steps)].merge(row.flips);
    probe.clear();
    optimizer->set_lr(rate * rates.at(step + 1));
    if (step >= steps - steps / 10) run.loss += loss.item() / double(steps / 10);
  });
  return run;
}

/// MXFP4 for the weights of linear layers, with more settings of the quantizer.
amp::Strategy mxfp4_weights(const std::string& name, const std::string& more) {
  return policy_of(
      name, "fp32",
      R"("rules": [{"match": {"op": "linear"}, "weight": {"like": "mxfp4")" + more + "}}]");
}

struct Rounded {
  const char* name;
  amp::Strategy strategy;
  double flips_back = 0, cost = 0;  // in the last phase; the loss over that of f32
};

void run(Findings& found) {
  const uint64_t seeds = found.thorough() ? 8 : 3;
  const int64_t steps = found.thorough() ? 3000 : 900;
  const amp::Strategy f32 = amp::Strategy::named("fp32");
  Table table({"rate", "weights", "phase", "flipped a step", "and back", "share of flips",
               "loss over f32's"});
  for (const char* schedule : {"constant", "cosine"}) {
    std::vector<double> losses;
    for (uint64_t seed = 0; seed < seeds; ++seed)
      losses.push_back(train(f32, schedule, seed, steps).loss);
    Rounded each[]{{"nearest", mxfp4_weights("mxfp4 weights", "")},
                   {"by average", mxfp4_weights("averaged", R"(, "average": 0.9983)")}};
    for (Rounded& rounded : each) {
      policy::WeightFlips all[phases]{};
      std::vector<double> costs;
      for (uint64_t seed = 0; seed < seeds; ++seed) {
        const Run own = train(rounded.strategy, schedule, seed, steps);
        for (int p = 0; p < phases; ++p) all[p].merge(own.flips[p]);
        costs.push_back(own.loss / losses[seed]);
      }
      rounded.cost = median(costs);
      double shares[phases]{};
      for (int p = 0; p < phases; ++p) {
        shares[p] = all[p].returned / all[p].flipped;
        table.row({schedule, rounded.name, std::to_string(p + 1), percent(all[p].flipped_share()),
                   fixed(100 * all[p].oscillation(), 3) + " %", percent(shares[p]),
                   p == phases - 1 ? fixed(rounded.cost, 2) : ""});
      }
      rounded.flips_back = all[phases - 1].oscillation();
      if (&rounded == each)
        found.at_least(
            std::string(schedule) + ", share of flips that go back, last phase over first",
            shares[phases - 1] / shares[0], 1);
    }
    found.at_most(std::string(schedule) + ", numbers that flip back, by average over nearest",
                  each[1].flips_back / each[0].flips_back, 0.67);
  }
  found.out() << table;
}

}  // namespace e23

const Experiment found::e23{
    "E23",
    "Late in a training a larger share of the MXFP4 weights that move to another point of their "
    "grid moves back, and rounding by an average prevents that (TetraJet, arXiv 2502.20853).",
    e23::run};

}  // namespace halftone::lab
