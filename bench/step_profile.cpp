// Prints where the time of a training step goes: every operation's forward and backward on the
// clock of the issuing thread, the update, and the rest. A session without rules (amp/session.h)
// gives each operation a tap; with --strategy, a policy file's own session is not used. Synthetic
// data, as in train_step, on the CPU.
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <map>

#include <CLI/CLI.hpp>

#include "../examples/output.h"
#include <halftone/amp/session.h>
#include <halftone/autograd/node.h>
#include <halftone/halftone.h>
#include <halftone/lab/workload_data.h>

namespace ht = halftone;

namespace {
using Clock = std::chrono::steady_clock;
double since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

struct Spent {
  double forward = 0, backward = 0;
  int64_t calls = 0;
};
using Profile = std::map<std::string, Spent>;

/// Runs one operation and measures its time.
class Clocked final : public ht::OpTap {
 public:
  explicit Clocked(Spent& spent) : spent_(spent) {}
  ht::Tensor forward(std::span<const ht::Tensor> inputs, ht::Computation& operation) override {
    const auto start = Clock::now();
    ht::Tensor y = operation.run(inputs);
    spent_.forward += since(start), ++spent_.calls;
    return y;
  }
  std::vector<ht::Tensor> backward(ht::Node& node, const ht::Tensor& dy) override {
    const auto start = Clock::now();
    std::vector<ht::Tensor> gradients = node.backward(dy);
    spent_.backward += since(start);
    return gradients;
  }

 private:
  Spent& spent_;
};

/// Adds a clock to each operation of a region.
class Clocks final : public ht::InputCaster {
 public:
  explicit Clocks(Profile& profile) : profile_(profile), inner_(ht::shared_active_caster()) {}
  ht::CastPlan plan(const ht::OpInfo& op, std::span<ht::Tensor> inputs, bool has_f32) override {
    ht::CastPlan plan = inner_ ? inner_->plan(op, inputs, has_f32) : ht::CastPlan{};
    plan.tap = std::make_shared<Clocked>(profile_[std::string(op.name)]);
    return plan;
  }
  bool treats() const override { return true; }
  void cast_inputs(const ht::OpInfo& op, std::span<ht::Tensor> inputs) override {
    if (inner_) inner_->cast_inputs(op, inputs);
  }

 private:
  Profile& profile_;
  std::shared_ptr<ht::InputCaster> inner_;
};

struct Options {
  std::string workload = "gpt_char", strategy = "amp-bf16";
  int threads = 2, steps = 100;
  double seconds = 8;
};

void line(const std::string& what, double forward, double backward, double calls, double whole) {
  std::printf("%-34s %10.3f %10.3f %8.0f %6.1f %%\n", what.c_str(), forward, backward, calls,
              100 * (forward + backward) / whole);
}

void profile_steps(const Options& options) {
  ht::lab::SyntheticWorkload w = ht::lab::make_synthetic(options.workload);
  ht::optim::AdamW adamw(w.model->parameters(), {.lr = 1e-4, .weight_decay = 0.01});
  auto training = ht::amp::apply(ht::amp::Policy::named(options.strategy), *w.model, adamw);
  Profile profile;
  double forward = 0, backward = 0, update = 0;
  int steps = 0;
  const auto step = [&] {
    auto start = Clock::now();
    const auto lap = [&start](double& sum) {
      const auto now = Clock::now();
      sum += std::chrono::duration<double, std::milli>(now - start).count(), start = now;
    };
    const ht::Tensor logits = training.forward(
        [&](const ht::Tensor& x) {
          const ht::CasterScope clocks(std::make_shared<Clocks>(profile));
          return (*w.model)(x);
        },
        w.inputs);
    const ht::Tensor loss = ht::lab::logits_loss(logits, w.targets);
    lap(forward);
    training.backward(loss);
    lap(backward);
    training.step();
    training.zero_grad();
    lap(update);
  };
  for (int i = 0; i < 4; ++i) step();  // fills caches and makes plans
  profile.clear(), forward = backward = update = 0;
  for (const auto start = Clock::now(); steps < options.steps; ++steps) {
    if (since(start) > 1e3 * options.seconds) break;
    step();
  }
  const double whole = (forward + backward + update) / steps;
  std::vector<std::pair<std::string, Spent>> rows(profile.begin(), profile.end());
  const auto total = [](const auto& row) { return row.second.forward + row.second.backward; };
  std::ranges::sort(rows, std::greater{}, total);
  std::printf("%s, %s, %d threads, mean of %d steps\n%-34s %10s %10s %8s %8s\n",
              options.workload.c_str(), options.strategy.c_str(), options.threads, steps,
              "operation", "forward ms", "backward", "calls", "share");
  for (const auto& [name, spent] : rows) {
    forward -= spent.forward, backward -= spent.backward;
    line(name, spent.forward / steps, spent.backward / steps, double(spent.calls) / steps, whole);
  }
  line("between operations", forward / steps, backward / steps, 0, whole);
  line("the update, zeroing of gradients", update / steps, 0, 1, whole);
  std::printf("%-34s %10.3f ms a step\n", "all", whole);
}
}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Says where the time of a training step goes, operation by operation.");
  app.add_option("--workload", options.workload, ht::lab::synthetic_list());
  app.add_option("--strategy", options.strategy, "as in amp/policy.h");
  app.add_option("--threads", options.threads, "OpenMP threads")->check(CLI::PositiveNumber);
  app.add_option("--steps", options.steps, "most steps measured")->check(CLI::PositiveNumber);
  app.add_option("--seconds", options.seconds, "most seconds")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  omp_set_num_threads(options.threads);
  try {
    profile_steps(options);
  } catch (const ht::Error& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return after_output();
}
