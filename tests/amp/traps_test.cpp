// The traps of mixed precision, each with a test that finds it. docs/traps.md explains
// them.
#include <cmath>
#include <limits>
#include <thread>

#include "cases.h"

namespace halftone::test::traps_test {
namespace {

using amp::Autocast;
using amp::GradScaler;
using amp::MasterWeights;
using amp::Policy;
using amp::Training;

constexpr double infinity = std::numeric_limits<double>::infinity();

Tensor leaf(const Shape& shape) { return randn(shape).set_requires_grad(); }

/// A loss that is quadratic in w under a region.
Tensor loss_of(const Tensor& x, const Tensor& w) { return mean(square(linear(x, w))); }

TEST_CASE("trap: a forward pass under NoGrad, then training, in one region") {
  manual_seed(0);
  const Tensor x = randn({4, 8});
  Tensor w = leaf({3, 8});
  const Autocast region(bf16);
  {
    const NoGrad no_grad;
    CHECK_FALSE(linear(x, w).requires_grad());
  }
  loss_of(x, w).backward();
  REQUIRE(w.grad().defined());  // the entry made under NoGrad still leads to the weight
  CHECK(amp::active_cast_cache()->counters().hits == 1);
}

TEST_CASE("trap: the weight changes inside a region") {
  manual_seed(0);
  const Tensor x = randn({4, 8});
  nn::Linear layer(8, 3);
  optim::Sgd sgd(layer.parameters(), {.lr = 0.5});
  const Autocast region(bf16);
  const auto uncached = [&] {
    const Autocast fresh(amp::Region{.cache = false});
    return linear(x, layer.weight, layer.bias);
  };
  SUBCASE("by an optimizer") {
    sum(layer(x)).backward();
    sgd.step();
  }
  SUBCASE("by loading a state") {
    layer(x);
    nn::Linear other(8, 3);
    nn::load_state_dict(layer, nn::state_dict(other));
  }
  SUBCASE("by new storage") {
    layer(x);
    *layer.weight.body() = *randn({3, 8}).body();
  }
  SUBCASE("by new storage that has been written as often") {
    const Tensor other = randn({3, 8});
    while (layer.weight.storage()->version() < other.storage()->version())
      layer.weight.storage()->bump_version();
    while (other.storage()->version() < layer.weight.storage()->version())
      other.storage()->bump_version();
    layer(x);
    *layer.weight.body() = *other.body();
  }
  CHECK(same_bits(layer(x).detach(), uncached().detach()));
}

TEST_CASE("trap: one weight under two dtypes") {
  manual_seed(0);
  const Tensor x = randn({4, 8});
  const Tensor w = leaf({3, 8});
  const Autocast outer(bf16);
  CHECK(linear(x, w).dtype() == bf16);
  {
    const Autocast inner(f16);
    CHECK(linear(x, w).dtype() == f16);
  }
  CHECK(linear(x, w).dtype() == bf16);
  CHECK(amp::active_cast_cache()->counters().misses == 2);
  CHECK(amp::active_cast_cache()->counters().hits == 1);
}

TEST_CASE("trap: regions in other threads start clean") {
  const Autocast region(bf16);
  bool enabled = true;
  DType dtype = bf16;
  std::thread([&] {
    enabled = amp::autocast_enabled();
    dtype = linear(ones({2, 2}), ones({2, 2})).dtype();
  }).join();
  CHECK_FALSE(enabled);
  CHECK(dtype == f32);
  CHECK(amp::autocast_enabled());
}

TEST_CASE("trap: a checkpointed segment is computed again in its own region") {
  manual_seed(0);
  const Tensor x = leaf({4, 8});
  const Tensor w = leaf({3, 8}), same_w = w.clone().set_requires_grad();
  std::vector<DType> seen;
  const Tensor y = amp::autocast(bf16, [&] {
    return checkpoint(
        [&](const std::vector<Tensor>& in) {
          const Tensor product = linear(in[0], w);
          seen.push_back(product.dtype());
          return sum(square(product));
        },
        {x});
  });
  {
    const Autocast another(f16);  // the region of backward does not matter
    y.backward();
  }
  CHECK(seen == std::vector{bf16, bf16});
  amp::autocast(bf16, [&] { return sum(square(linear(x.detach(), same_w))); }).backward();
  CHECK(same_bits(w.grad(), same_w.grad()));
}

TEST_CASE("trap: two losses share the casts of one region, each has its backward") {
  manual_seed(0);
  const Tensor x = randn({4, 8});
  Tensor w = leaf({3, 8}), norm_weight = leaf({8});
  Tensor first, second;
  {
    const Autocast region(bf16);
    first = mean(linear(x * norm_weight, w)), second = mean(square(linear(x * norm_weight, w)));
  }
  first.backward();
  second.backward();  // the shared cast of w still exists
  CHECK(w.grad().defined());
}

TEST_CASE("trap: clipping comes after unscaling") {
  StrategyCase scaled("amp-fp16"), plain("amp-fp16");
  Policy unscaled = Policy::named("amp-fp16");
  unscaled.scales_loss = false;
  StrategyCase reference(unscaled);
  scaled.training.backward(scaled.loss());
  reference.training.backward(reference.loss());
  const double norm = scaled.training.clip_grad_norm(0.01).item(),
               wanted = reference.training.clip_grad_norm(0.01).item();
  CHECK(norm == doctest::Approx(wanted).epsilon(epsilon(f16)));
  scaled.training.step(), reference.training.step();
  // With PyTorch's methods: unscale, clip, step.
  plain.training.backward(plain.loss());
  GradScaler& scaler = plain.training.scaler();
  scaler.unscale(plain.training.optimizer());
  optim::clip_grad_norm(plain.model->parameters(), 0.01);
  scaler.step(plain.training.optimizer());
  for (const auto& [name, x] : nn::state_dict(*scaled.model)) {
    const auto other = nn::state_dict(*plain.model).at(name).to_vector<double>();
    const auto got = x.to_vector<double>();
    for (std::size_t i = 0; i < got.size(); ++i)
      CHECK(got[i] == doctest::Approx(other[i]).epsilon(1e-5));
  }
}

TEST_CASE("trap: the norm of short gradients is computed in f32 or wider") {
  Tensor a = ones({1000}, f16).set_requires_grad();
  a.set_grad(full({1000}, 300, f16));  // a square is 90,000: more than f16 can hold
  CHECK(optim::clip_grad_norm({a}, 1e9).item() == doctest::Approx(300 * std::sqrt(1000.0)));
  Tensor b = ones({100000}, bf16).set_requires_grad();
  b.set_grad(full({100000}, 0.5, bf16));  // a sum in bf16 would stop growing at 128
  CHECK(optim::clip_grad_norm({b}, 1e9).item() == doctest::Approx(0.5 * std::sqrt(100000.0)));
}

TEST_CASE("trap: Adam's eps of 1e-8 is 0 in f16, and 0 / 0 is NaN") {
  Tensor w = ones({8}, f16).set_requires_grad();
  optim::AdamW adamw({w}, {.lr = 1e-2, .state_dtype = f16});
  for (int i = 0; i < 3; ++i) {
    w.set_grad(zeros({8}, f16));
    adamw.step();
  }
  for (const double value : w.to_vector<double>()) CHECK(std::isfinite(value));
}

TEST_CASE("trap: weight decay in bf16 rounds to nothing, unless the rest is stored") {
  const auto after = [](std::optional<WeightForm> form) {
    Tensor w = ones({4096}, bf16).set_requires_grad();
    optim::AdamW adamw({w}, {.lr = 1e-2, .weight_decay = 0.01});
    std::unique_ptr<MasterWeights> masters;
    if (form)
      masters = std::make_unique<MasterWeights>(adamw, amp::MasterWeightsOptions{.form = *form});
    for (int i = 0; i < 200; ++i) {
      w.set_grad(zeros({4096}, bf16));
      if (masters) masters->step();
      else adamw.step();
    }
    return mean(cast(w.detach(), f64)).item();
  };
  const double decayed = std::pow(1 - 1e-4, 200);  // 0.9802
  CHECK(after({}) == 1.0);
  for (const WeightForm form : {WeightForm::master, WeightForm::split, WeightForm::split_rounded,
                                WeightForm::kahan, WeightForm::stochastic}) {
    CAPTURE(name(form));
    CHECK(after(form) == doctest::Approx(decayed).epsilon(epsilon(bf16) / 2));
  }
}

/// A batch whose gradients overflow: an infinite weight on its loss.
bool step_that_overflows(Training& training, nn::Layer& model, const Tensor& x, const Tensor& t) {
  training.zero_grad();
  training.backward(cross_entropy(training.forward(model, x), t) * infinity);
  return training.step();
}

TEST_CASE("trap: batch-norm statistics survive a skipped step, unless held back") {
  for (const bool hold : {false, true}) {
    CAPTURE(hold);
    manual_seed(0);
    auto model =
        std::make_unique<nn::Sequential>(nn::Linear(24, 8), nn::BatchNorm1d(8), nn::Linear(8, 10));
    Policy strategy = Policy::named("amp-fp16");
    strategy.hold_statistics = hold;
    StrategyCase run(strategy, std::move(model), 0);
    run.step();
    const auto before = copy_of(nn::state_dict(*run.model));
    CHECK_FALSE(step_that_overflows(run.training, *run.model, run.inputs, run.targets));
    const auto after = nn::state_dict(*run.model);
    CHECK(same_bits(before.at("0.weight"), after.at("0.weight")));
    CHECK(same_bits(before.at("1.running_mean"), after.at("1.running_mean")) == hold);
    CHECK(same_bits(before.at("1.num_batches_tracked"), after.at("1.num_batches_tracked")) == hold);
  }
}

TEST_CASE("trap: a skipped step advances nothing, and names the tensor that overflowed") {
  StrategyCase run("amp-fp16");
  run.step();
  const auto before = copy_of(run.adamw.state_dict());
  CHECK_FALSE(step_that_overflows(run.training, *run.model, run.inputs, run.targets));
  CHECK(same_state(before, run.adamw.state_dict()));
  CHECK(run.training.skipped_steps() == 1);
  CHECK(run.training.first_overflow() == "0.weight");
  CHECK(run.training.scaler().scale_value() == 32768);
  CHECK(std::isfinite(run.step()));  // and training continues
}

TEST_CASE("trap: an optimizer without gradients") {
  Tensor used = leaf({2}), unused = leaf({2});
  optim::Sgd a({used}, {.lr = 0.1}), b({unused}, {.lr = 0.1});
  GradScaler scaler;
  scaler.scale(sum(used)).backward();
  CHECK(scaler.step(a));
  CHECK_THROWS_WITH_AS(
      scaler.step(b),
      "[GradScaler.step] this optimizer has no gradients, so nothing could be "
      "checked. Call backward() on a loss that its parameters are part of, or leave "
      "it out.",
      UsageError);
  scaler.update();  // the other optimizer can continue
  scaler.scale(sum(used) + sum(unused)).backward();
  CHECK(scaler.step(a));
  CHECK(scaler.step(b));
}

TEST_CASE("trap: two optimizers, one overflows: the other steps, the scale backs off") {
  Tensor a = ones({2}).set_requires_grad(), b = ones({2}).set_requires_grad();
  optim::Sgd first({a}, {.lr = 1}), second({b}, {.lr = 1});
  GradScaler scaler({.init_scale = 1024});
  scaler.scale(sum(a) + sum(b) * infinity).backward();
  CHECK(scaler.step(first));
  CHECK_FALSE(scaler.step(second));
  scaler.update();
  CHECK(a.to_vector<double>() == std::vector<double>{0, 0});
  CHECK(b.to_vector<double>() == std::vector<double>{1, 1});
  CHECK(scaler.scale_value() == 512);
}

TEST_CASE("trap: the scale at its floor and at its ceiling") {
  amp::LossScale s{
      .options = {.init_scale = 4, .growth_interval = 1, .min_scale = 2, .max_scale = 8}};
  s = next(next(s, true), true);
  CHECK(s.scale == 2.0f);
  s = next(next(next(s, false), false), false);
  CHECK(s.scale == 8.0f);
  amp::LossScale free{.options = {.init_scale = 1, .growth_interval = 1}};
  for (int i = 0; i < 300; ++i) free = next(free, false);
  CHECK(std::isfinite(free.scale));
  for (int i = 0; i < 600; ++i) free = next(free, true);
  CHECK(free.scale > 0);
  CHECK(std::isfinite(1 / free.scale));
}

TEST_CASE("trap: gradients accumulated in bf16 lose small terms") {
  const auto gradient_after = [](bool in_f32) {
    Tensor w = ones({4}, bf16).set_requires_grad();
    optim::Sgd sgd({w}, {.lr = 1});
    MasterWeights masters(sgd, {.accumulate_in_f32 = in_f32});
    for (int i = 0; i < 300; ++i) {
      sum(w * full({4}, i == 0 ? 1.0 : 1.0 / 512, bf16)).backward();
      if (in_f32) masters.collect();
    }
    return masters.gradients()[0].at({0});
  };
  CHECK(gradient_after(false) == 1.0);
  CHECK(gradient_after(true) == 1.0 + 299.0 / 512);
}

TEST_CASE("trap: loading must not cast the optimizer's state to the parameters' dtype") {
  StrategyCase run("o2-bf16"), other("o2-bf16");
  run.step();
  other.training.load_state_dict(copy_of(run.training.state_dict()));
  for (const auto& [name, x] : other.adamw.state_dict())
    if (name.find("exp_avg") != std::string::npos) CHECK(x.dtype() == f32);
  CHECK(same_state(run.training.state_dict(), other.training.state_dict()));
}

TEST_CASE("trap: masters are saved and restored, not made again from short weights") {
  StrategyCase run("o2-bf16"), resumed("o2-bf16");
  for (int i = 0; i < 5; ++i) run.step();
  resumed.training.load_state_dict(copy_of(run.training.state_dict()));
  const Tensor master = resumed.training.masters()->weight(0);
  CHECK(same_bits(master, run.training.masters()->weight(0)));
  const Tensor short_weight = cast(cast(master, bf16), f32);
  CHECK_FALSE(same_bits(master, short_weight));  // otherwise the test shows nothing
}

TEST_CASE("trap: the sum of many f16 values is accumulated in f32") {
  const Tensor x = full({1000}, 100, f16);  // the sum is 100,000, more than f16 can hold
  CHECK(mean(x).item() == 100);
  const Tensor total = amp::autocast(f16, [&] { return sum(x); });
  CHECK(total.dtype() == f32);
  CHECK(total.item() == 100000);
}

TEST_CASE("trap: the bias is inside linear, or it would promote the activations") {
  const Tensor x = randn({4, 8}), w = leaf({3, 8}), bias = leaf({3});
  const Autocast region(bf16);
  CHECK(linear(x, w, bias).dtype() == bf16);
  CHECK((linear(x, w) + bias).dtype() == f32);
}

TEST_CASE("trap: accumulated gradients keep their unit when the scale changes between them") {
  Tensor w = ones({2}).set_requires_grad();
  optim::Sgd sgd({w}, {.lr = 1});
  GradScaler scaler({.init_scale = 1024});
  scaler.scale(sum(w)).backward();
  scaler.update(256.0);
  scaler.rescale(sgd, scalar(1024));
  scaler.scale(sum(w)).backward();
  scaler.unscale(sgd);
  CHECK(w.grad().to_vector<double>() == std::vector<double>{2, 2});
}

}  // namespace
}  // namespace halftone::test::traps_test
