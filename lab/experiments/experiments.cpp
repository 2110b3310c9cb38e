// The list of experiments.
#include <halftone/lab/experiments/experiments.h>

#include <array>
#include <atomic>
#include <functional>
#include <numeric>
#include <ostream>
#include <vector>

#include <unistd.h>

#include <halftone/core/error.h>
#include <halftone/core/files.h>
#include <halftone/lab/table.h>
#include <halftone/lab/trial.h>
#include <halftone/amp/probe.h>

namespace halftone::lab {

std::span<const Experiment> experiments() {
  using namespace found;
  static const std::array all{e1,  e2,  e3,  e4,  e5,  e6,  e7,  e8,  e9,  e10, e11, e12, e13, e14,
                              e15, e16, e17, e18, e19, e20, e21, e22, e23, e24, e25, e26, e27, e28};
  return all;
}

const Experiment& experiment_named(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Experiment& experiment : experiments()) {
    if (experiment.name == name) return experiment;
    names.push_back(experiment.name);
  }
  fail_unknown_name("halftone-lab experiment", "experiment", name, names);
}

// Prints one line for each check.

void Findings::say(std::string_view what, const std::string& value, const std::string& bar,
                   bool right) {
  checks_.push_back({std::string(what), value, bar, right}), missed_ += !right;
  out_ << "  " << (right ? "ok      " : "MISSED  ") << what << ": " << value << ", " << bar << '\n';
}

void Findings::within(std::string_view what, double value, double least, double most) {
  say(what, number(value), "bar " + number(least) + " to " + number(most),
      value >= least && value <= most);
}

void Findings::at_least(std::string_view what, double value, double least) {
  say(what, number(value), "bar at least " + number(least), value >= least);
}

void Findings::at_most(std::string_view what, double value, double most) {
  say(what, number(value), "bar at most " + number(most), value <= most);
}

void Findings::exactly(std::string_view what, double value, double wanted) {
  say(what, number(value, 9), "bar exactly " + number(wanted, 9), value == wanted);
}

void Findings::equal(std::string_view what, std::string_view value, std::string_view wanted) {
  say(what, std::string(value), "bar " + std::string(wanted), value == wanted);
}

void Findings::different(std::string_view what, std::string_view value, std::string_view other) {
  say(what, std::string(value), "bar other than " + std::string(other), value != other);
}

// Runs of several policies by lab::run(), as a table.

std::string signed_percent(const Interval& interval) {
  const auto text = [](double share) { return fixed(100 * share, 2) + " %"; };
  return (interval.mean > 0 ? "+" : "") + text(interval.mean) + " +- " + text(interval.half);
}

std::vector<Cell> cells_of(const std::vector<amp::Policy>& policies, const Setup& setup) {
  std::vector<Cell> cells;
  for (const amp::Policy& policy : policies) cells.push_back({policy.name, policy, setup});
  return cells;
}

std::vector<RunResult> all_runs(const Study& study) {
  std::ostream silent(nullptr);
  std::vector<RunResult> runs = lab::run(study, {}, silent);
  if (const std::size_t wanted = study.cells.size() * study.seeds.size(); runs.size() < wanted)
    fail<Stopped>("experiment", "stopped after ", runs.size(), " of ", wanted,
                  " runs. Start it again for a result.");
  return runs;
}

PairedRuns::PairedRuns(Findings& found, const Setup& setup,
                       const std::vector<amp::Policy>& policies, std::size_t seeds)
    : policies_(policies.size()), seeds_(seeds) {
  Study study{.cells = cells_of(policies, setup)};
  study.seeds.resize(seeds);
  std::iota(study.seeds.begin(), study.seeds.end(), 0);
  runs_ = all_runs(study);
  Table table({"policy", "late loss", "against " + run(0, 0).policy + ", 95 %"});
  for (std::size_t p = 0; p < policies_; ++p) {
    double loss = 0;
    for (std::size_t s = 0; s < seeds_; ++s) loss += run(p, s).late_loss / double(seeds_);
    table.row({run(p, 0).policy, fixed(loss, 4), p == 0 ? "" : signed_percent(difference(p))});
  }
  found.out() << setup.workload << ", " << seeds << " seeds, " << setup.steps << " steps\n"
              << table;
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

// Ten clusters that overlap slightly. AdamW's eps is so small that the step size does not depend on
// the size of the gradients.

namespace {
constexpr int64_t steps = 300, batch_size = 128, inputs = 64, classes = 10;

/// Centers, and vectors around them. Neighbors overlap slightly.
struct Clusters {
  Tensor centres = randn({classes, inputs});
  std::pair<Tensor, Tensor> draw(int64_t count) const {
    const Tensor labels = randint(0, classes, {count});
    return {index_select(centres, 0, labels) + randn({count, inputs}) * 2, labels};
  }
};
}  // namespace

SmallGradientRun train_small_gradients(const amp::Policy& strategy, double loss_weight) {
  manual_seed(7);
  nn::Sequential model = nn::models::mlp({inputs, 128, 64, classes});
  const Clusters clusters;
  const auto [test, test_labels] = clusters.draw(4096);
  optim::AdamW adamw(model.parameters(), {.lr = 1e-3, .eps = 1e-15});
  amp::Training training(strategy, model, adamw);
  const auto accuracy = [&, &x = test, &labels = test_labels] {
    const NoGrad no_grad;
    const std::vector<double> said = argmax(training.forward(model, x), 1).to_vector<double>(),
                              right = labels.to_vector<double>();
    return std::inner_product(said.begin(), said.end(), right.begin(), 0.0, std::plus<>(),
                              std::equal_to<>()) /
           double(right.size());
  };
  SmallGradientRun run;
  run.untrained = accuracy();
  policy::Probe probe(training, {.every = 10,
                                 .roles = {policy::Role::grad_output, policy::Role::grad_input,
                                           policy::Role::grad_weight},
                                 .updates = false});
  for (int64_t step = 0; step < steps; ++step) {
    const auto [x, labels] = clusters.draw(batch_size);
    training.zero_grad();
    training.backward(cross_entropy(training.forward(model, x), labels) * loss_weight);
    training.step();
  }
  for (const policy::ProbeRow& row : probe.rows()) {
    if (row.site.find("/linear.") == std::string::npos) continue;
    if (row.role == policy::Role::grad_output) run.output_gradients.merge(row.survey);
    run.gradients.push_back(row.survey);
  }
  run.accuracy = accuracy();
  return run;
}

amp::Policy f16_with(const std::string& loss_scale) {
  return policy_of("f16", "amp-fp16", R"("loss_scale": )" + loss_scale);
}

}  // namespace halftone::lab
