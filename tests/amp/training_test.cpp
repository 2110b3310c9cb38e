// A training whose updates decide whether to skip, as on a GPU, compared with one whose host
// decides: the bits are the same, and values are read only on request.
#include <cmath>
#include <limits>

#include <halftone/backends/reference/reference.h>
#include <halftone/backends/registry.h>

#include "cases.h"
#include "own_optimizer.h"

namespace halftone::test::device_decisions_test {
namespace {

using amp::Decision;
using amp::GradScaler;
using amp::Stepped;
using amp::Strategy;

constexpr double infinity = std::numeric_limits<double>::infinity();

/// A strategy's training of a network with batch norm.
struct Decided {
  StrategyCase run;
  Decided(const Strategy& strategy, Decision decision) : run(strategy, network(), 4) {
    run.training.scaler() =
        GradScaler(strategy.loss_scale, {.enabled = strategy.scales_loss, .decision = decision});
  }
  static std::unique_ptr<nn::Layer> network() {
    manual_seed(4);
    return std::make_unique<nn::Sequential>(nn::Linear(24, 8), nn::BatchNorm1d(8),
                                            nn::Linear(8, 10));
  }
  Stepped step(double weight, bool clips, int micro_batches = 1) {
    run.training.zero_grad();
    for (int i = 0; i < micro_batches; ++i) run.training.backward(run.loss() * weight);
    if (clips) run.training.clip_grad_norm(0.1);
    return run.training.step();
  }
  optim::NamedTensors state() { return copy_of(run.training.state_dict()); }
};

Strategy strategy_of(std::string_view name) {
  Strategy strategy = Strategy::named(name);
  strategy.loss_scale = {.init_scale = 1024, .growth_interval = 2};
  strategy.hold_statistics = true;
  return strategy;
}

TEST_CASE("decided in the update: the training of a host that decides, to the bit") {
  for (const char* name : {"amp-fp16", "o2-fp16", "o3-fp16", "fp32"})
    for (const bool fused : {true, false})
      for (const bool clips : {false, true})
        for (const bool in_f32 : {false, true}) {
          INFO(name, fused ? ", fused" : "", clips ? ", clipped" : "", in_f32 ? ", f32 sums" : "");
          Strategy strategy = strategy_of(name);
          strategy.fused_master = fused, strategy.accumulate_in_f32 = in_f32;
          if (strategy.form == WeightForm::plain && (!fused || in_f32)) continue;
          Decided host(strategy, Decision::where_free), update(strategy, Decision::in_update);
          const bool scales = strategy.scales_loss;
          for (int step = 0; step < 12; ++step) {
            const bool overflows = scales && (step == 0 || step == 3 || step == 4 || step == 9);
            const double weight = overflows ? infinity : 1;
            const Stepped now = host.step(weight, clips), later = update.step(weight, clips);
            CHECK(now.known());
            CHECK(later.known() == !scales);
            CHECK(same_state(host.state(), update.state()));
            CHECK(bool(now) == !overflows);
            CHECK(bool(later) == !overflows);
            CHECK(later.known());
          }
          CHECK(host.run.training.skipped_steps() == (scales ? 4 : 0));
          CHECK(update.run.training.skipped_steps() == (scales ? 4 : 0));
        }
}

/// Counts reads by the host; on a GPU each would wait.
struct CountingReads final : ReferenceBackend {
  int reads = 0;
  void copy_to_host(const void* device, void* host, std::size_t bytes) override {
    ++reads;
    ReferenceBackend::copy_to_host(device, host, bytes);
  }
};

TEST_CASE("a step reads nothing back, only requests for its results do") {
  for (const bool clips : {false, true})
    for (const int micro_batches : {1, 2})
      for (const char* name : {"amp-fp16", "o2-fp16"}) {
        INFO(name, clips ? ", clipped" : "", ", micro-batches: ", micro_batches);
        CountingReads backend;
        const CpuBackendReplacement scope(backend);
        Decided run(strategy_of(name), Decision::in_update);
        run.step(1, clips, micro_batches);
        backend.reads = 0;
        for (int step = 0; step < 3; ++step) {
          const Stepped stepped = run.step(step == 1 ? infinity : 1, clips, micro_batches);
          CHECK(backend.reads == 0);
          CHECK(bool(stepped) == (step != 1));
          CHECK(std::exchange(backend.reads, 0) == 1);
        }
        CHECK(run.run.training.skipped_steps() == 1);
        CHECK(backend.reads == 1);
      }
}

TEST_CASE("first_overflow, when the update decided, is searched for on request") {
  Decided run(strategy_of("amp-fp16"), Decision::in_update);
  const auto& training = run.run.training;
  CHECK(run.step(1, false));
  CHECK(training.first_overflow().empty());
  run.step(infinity, false);
  CHECK(training.first_overflow() == "0.weight");
  run.step(1, false);
  CHECK(training.first_overflow() == "0.weight");  // of the last skipped step
}

TEST_CASE("first_overflow: the position among the gradients, until update()") {
  const Tensor a = ones({2}).set_requires_grad(), b = a.clone().set_requires_grad();
  const Tensor c = a.clone().set_requires_grad();
  optim::Sgd sgd({a, b, c});
  GradScaler scaler, in_update({}, {.decision = Decision::in_update});
  scaler.scale(sum(a) + (sum(b) + sum(c)) * infinity).backward();
  CHECK_FALSE(scaler.first_overflow(sgd));
  SUBCASE("unscale") { scaler.unscale(sgd); }
  SUBCASE("step") { CHECK_FALSE(scaler.step(sgd)); }
  SUBCASE("step, decided in the update") {
    in_update.scale(ones({})), scaler = in_update;
    scaler.step(sgd);
  }
  CHECK(scaler.first_overflow(sgd) == std::optional<std::size_t>(1));
  scaler.update();
  CHECK_FALSE(scaler.first_overflow(sgd));
}

TEST_CASE("an optimizer that cannot decide in its update reads the flag itself") {
  Tensor w = ones({2}).set_requires_grad();
  OwnOptimizer own({w});
  GradScaler scaler({.init_scale = 4}, {.decision = Decision::in_update});
  scaler.scale(sum(w) * infinity).backward();
  const Stepped skipped = scaler.step(own);
  CHECK_FALSE(skipped);
  CHECK(w.at({0}) == 1);
  scaler.update();
  CHECK(scaler.scale_value() == 2);
  w.set_grad({});
  scaler.scale(sum(w)).backward();
  CHECK(scaler.step(own));
  CHECK(w.at({0}) == 0.5);
}

TEST_CASE("the answer of a step is read once, on request, and stored") {
  Tensor skip = ones({});
  const Stepped stepped(skip), same = stepped;
  CHECK_FALSE(stepped.known());
  CHECK_FALSE(stepped);
  CHECK(stepped.known());
  backend_for(skip).fill(0, skip);
  CHECK_FALSE(stepped);  // asked before
  CHECK(same);           // asked now
  CHECK_FALSE(Stepped(scalar(std::numeric_limits<double>::quiet_NaN())));
  CHECK(Stepped(true).known());
}

TEST_CASE("1 / scale on the device is the f64 quotient, rounded") {
  manual_seed(9);
  const std::vector<double> exponents = (rand({400}, f64) * 250.0 - 125.0).to_vector<double>();
  for (const double exponent : exponents) {
    Tensor w = ones({1}).set_requires_grad();
    w.set_grad(ones({1}));
    optim::Sgd sgd({w}, {.lr = 1});
    const auto scale = double(float(std::exp2(exponent)));
    GradScaler scaler({.init_scale = scale});
    scaler.scale(ones({}));
    scaler.unscale(sgd);
    CHECK(w.grad().item() == double(float(1 / scale)));
  }
}

TEST_CASE("scale_tensor: the present scale; a returned tensor never changes") {
  GradScaler scaler({.init_scale = 64});
  const Tensor before = scaler.scale_tensor();
  CHECK(scaler.scale_tensor().body() == before.body());
  const Tensor w = ones({}).set_requires_grad();
  const Tensor scaled = scaler.scale(w);
  scaler.update(8.0);
  CHECK(before.item() == 64);
  CHECK(scaler.scale_tensor().item() == 8);
  scaled.backward();  // of a loss scaled before the scale changed
  CHECK(w.grad().item() == 64);
  GradScaler copy = scaler;
  copy.update(2.0);
  CHECK(scaler.scale_value() == 8);
}

TEST_CASE("micro-batches under a scale that changes between them") {
  const auto weights_after = [](double scale, std::optional<double> moved) {
    Strategy strategy = strategy_of("amp-fp16");
    strategy.loss_scale.init_scale = scale;
    Decided decided(strategy, Decision::in_update);
    StrategyCase& run = decided.run;
    run.training.backward(run.loss());
    if (moved) run.training.scaler().update(*moved);
    run.training.backward(run.loss());
    CHECK(run.training.step());
    return run.model->parameters()[0].detach().clone();
  };
  const Tensor steady = weights_after(1024, {});
  for (const double moved : {256.0, 4096.0}) CHECK(same_bits(weights_after(1024, moved), steady));
}

TEST_CASE("the norm is an f64 scalar") {
  StrategyCase run("amp-fp16");
  run.training.backward(run.loss());
  const Tensor norm = run.training.clip_grad_norm(1e9);
  CHECK(norm.dtype() == f64);
  CHECK(norm.rank() == 0);
  double squares = 0;
  for (const Tensor& x : run.model->parameters())
    squares += sum(square(cast(x.grad(), f64))).item();
  CHECK(norm.item() == doctest::Approx(std::sqrt(squares) / 65536).epsilon(epsilon(f32)));
}

}  // namespace
}  // namespace halftone::test::device_decisions_test
