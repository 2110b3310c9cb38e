// Applying a strategy to a model and an optimizer: combinations that fit, optimizers of users, and
// refusals that change nothing; and the misuse of the methods of a step.
#include <cmath>
#include <limits>

#include <doctest/doctest.h>

#include <halftone/backends/reference/reference.h>
#include <halftone/backends/registry.h>
#include <halftone/halftone.h>

#include "cases.h"

namespace halftone::test::apply_test {
namespace {

using amp::Policy;
using doctest::Contains;

TEST_CASE("apply() refuses models and optimizers that do not fit each other") {
  nn::Linear model(4, 2), other(4, 2);
  optim::Sgd sgd(model.parameters(), {.lr = 0.1});
  CHECK_THROWS_WITH_AS(
      amp::apply(Policy::named("o2-bf16"), other, sgd),
      doctest::Contains("the optimizer has a parameter [2, 4] f32 that the model has "
                        "not"),
      UsageError);
  Policy split_f16 = Policy::named("split-bf16");
  split_f16.weights = f16;
  CHECK_THROWS_WITH_AS(amp::apply(split_f16, model, sgd),
                       doctest::Contains("split_rounded keeps bf16 parameters only, one is f16"),
                       DTypeError);
  CHECK(model.weight.dtype() == f32);
  model.to(bf16);
  CHECK_THROWS_WITH_AS(amp::apply(Policy::named("o2-bf16"), model, sgd),
                       doctest::Contains("Give the strategy a model in f32"), DTypeError);
}

TEST_CASE("weights are floating") {
  nn::Linear model(4, 2);
  optim::Sgd sgd(model.parameters());
  Policy strategy = Policy::named("full-bf16");
  strategy.weights = i32;
  CHECK_THROWS_WITH_AS(amp::apply(strategy, model, sgd),
                       "[amp.apply] full-bf16 has i32 weights. Use f64, f32, f16 or bf16.",
                       DTypeError);
}

// --- optimizers of users

/// Two steps on the sum of a linear layer's outputs; the model's weight afterwards, in f32.
template <class Optimizer> Tensor stepped(const Policy& strategy, Optimizer&& make) {
  manual_seed(1);
  nn::Linear model(8, 4);
  auto optimizer = make(model.parameters());
  amp::Training training = amp::apply(strategy, model, optimizer);
  const Tensor x = randn({3, 8});
  for (int i = 0; i < 2; ++i) {
    training.zero_grad();
    training.backward(sum(training.forward(model, x)));
    CHECK(training.step());
  }
  REQUIRE(training.masters());
  CHECK(same_bits(model.weight.detach(), cast(training.masters()->weight(0), strategy.weights)));
  return training.masters()->weight(0);
}

TEST_CASE("an optimizer that does not update through the backend has masters in the plain way") {
  for (const char* name : {"o2-bf16", "o2-fp16"})
    for (const bool accumulates : {false, true}) {
      Policy strategy = Policy::named(name);
      strategy.accumulate_in_f32 = accumulates, strategy.loss_scale.init_scale = 1024;
      const Tensor own = stepped(strategy, [](auto p) { return OwnOptimizer(p); });
      strategy.fused_master = false;
      CHECK(same_bits(own, stepped(strategy, [](auto p) { return optim::Sgd(p, {.lr = 0.5}); })));
    }
  nn::Linear model(4, 2);
  OwnOptimizer own(model.parameters());
  amp::Training training = amp::apply(Policy::named("o2-bf16"), model, own);
  CHECK_FALSE(training.masters()->options().fused);
}

TEST_CASE("forms that live in the update are refused for such an optimizer, before any cast") {
  Policy sums = Policy::named("full-bf16");
  sums.accumulate_in_f32 = true;
  const std::vector<std::pair<Policy, std::string>> cases{
      {Policy::named("split-bf16"),
       "[amp.apply] split-bf16 keeps weights in form split_rounded, which needs an optimizer that "
       "updates "
       "through the backend; this one does not. Use a strategy of form master, for example "
       "o2-bf16."},
      {Policy::named("full-bf16-kahan"), "full-bf16-kahan keeps weights in form kahan"},
      {Policy::named("full-bf16-sr"), "full-bf16-sr keeps weights in form stochastic"},
      {sums,
       "[amp.apply] accumulate_in_f32 without masters needs an optimizer that updates through the "
       "backend, which this one does not. Use a strategy of form master, or leave "
       "accumulate_in_f32 off."}};
  for (const auto& [strategy, message] : cases) {
    CAPTURE(message);
    nn::Linear model(4, 2);
    OwnOptimizer own(model.parameters());
    const auto handles = nn::state_dict(model);
    const auto before = copy_of(handles);
    const Storage* const storage = model.weight.storage().get();
    CHECK_THROWS_WITH_AS(amp::apply(strategy, model, own), Contains(message.c_str()), UsageError);
    CHECK(same_state(before, nn::state_dict(model)));
    CHECK(model.weight.storage().get() == storage);
    CHECK(own.own[0].body() == model.weight.body());
  }
  nn::Linear model(4, 2);
  OwnOptimizer own(model.parameters());
  CHECK(amp::apply(Policy::named("full-bf16"), model, own).masters() == nullptr);
}

TEST_CASE("an optimizer of batch norm alone has f32 parameters and needs no masters") {
  for (const bool accumulates : {false, true}) {
    manual_seed(2);
    nn::Sequential model(nn::Linear(6, 4), nn::BatchNorm1d(4));
    const std::vector<Tensor> all = model.parameters();
    optim::Sgd sgd({all.end() - 2, all.end()}, {.lr = 0.1});
    Policy strategy = Policy::named("o2-bf16");
    strategy.accumulate_in_f32 = accumulates;
    amp::Training training = amp::apply(strategy, model, sgd);
    CHECK(training.masters() == nullptr);
    CHECK(all[0].dtype() == bf16);
    CHECK(all[2].dtype() == f32);
    const Tensor before = all[3].clone();
    training.backward(sum(training.forward(model, randn({5, 6}))));
    CHECK(training.step());
    CHECK_FALSE(same_bits(before, all[3].detach()));
    const auto state = copy_of(training.state_dict());
    training.load_state_dict(state);
    CHECK(same_state(state, training.state_dict()));
  }
}

// --- methods

TEST_CASE("the norm to clip to is 0 or more") {
  StrategyCase run("amp-fp16");
  run.training.backward(run.loss());
  for (const double bad : {-1.0, std::numeric_limits<double>::quiet_NaN()})
    CHECK_THROWS_WITH_AS(run.training.clip_grad_norm(bad),
                         Contains("[Training.clip_grad_norm] max_norm is"), UsageError);
  CHECK_THROWS_WITH_AS(run.training.clip_grad_norm(-1),
                       "[Training.clip_grad_norm] max_norm is -1. Use 0 or more.", UsageError);
  CHECK(run.training.clip_grad_norm(0).item() > 0);
  CHECK(run.training.step());
}

TEST_CASE("the norm is a sum in f64, and infinite if a gradient is") {
  nn::Linear model(1, 1);
  optim::Sgd sgd(model.parameters());
  amp::Training training = amp::apply(Policy::named("fp32"), model, sgd);
  model.weight.set_grad(full({1, 1}, 0x1p15)), model.bias.set_grad(ones({1}));
  CHECK(training.clip_grad_norm(1).item() == std::sqrt(0x1p30 + 1));  // in f32 the 1 would be lost
  model.weight.set_grad(full({1, 1}, std::numeric_limits<double>::infinity()));
  CHECK(std::isinf(training.clip_grad_norm(1).item()));
}

TEST_CASE("report() after unscale() is refused: the gradients are divided already") {
  Tensor w = ones({2}).set_requires_grad();
  optim::Sgd sgd({w}, {.lr = 0.5});
  amp::GradScaler scaler({.init_scale = 4});
  scaler.scale(sum(w)).backward();
  scaler.unscale(sgd);
  CHECK_THROWS_WITH_AS(scaler.report(sgd, zeros({})),
                       Contains("[GradScaler.report] called after unscale() of this optimizer"),
                       UsageError);
  CHECK(scaler.step(sgd));  // as without the refused report
  CHECK(w.at({0}) == 0.5);
}

TEST_CASE("a loss that the scaler has no scale for") {
  amp::GradScaler scaler;
  CHECK_THROWS_WITH_AS(scaler.scale_value(1),
                       "[GradScaler] got loss 1, but the scaler has 1 (0 is the first). Set "
                       "ScalerUse::losses when the scaler is made.",
                       UsageError);
  CHECK_THROWS_WITH_AS(scaler.loss_scale(-1), Contains("got loss -1, but the scaler has 1"),
                       UsageError);
  CHECK_THROWS_WITH_AS(amp::GradScaler({}, {.losses = -2}),
                       "[GradScaler] got -2 losses. Use 1 or more.", UsageError);
}

}  // namespace
}  // namespace halftone::test::apply_test

// Functions that consist of operations and have their own cast class: their dtypes under PyTorch's
// lists for CPU and GPU.

namespace halftone::test::composed_test {
namespace {

DType under(const char* preset, const std::function<Tensor()>& f) {
  return amp::autocast(amp::CastPolicy::preset(preset).with(bf16), f).dtype();
}

TEST_CASE("einsum: as a whole on PyTorch's list for CUDA, only its products on the CPU's") {
  const Tensor a = randn(3, 4), short_a = cast(a, bf16);
  const auto of = [&](const char* equation, const Tensor& b) {
    return [=] { return einsum(equation, a, b); };
  };
  CHECK(under("pytorch-cuda", of("ij,ij->ij", a)) == bf16);
  CHECK(under("pytorch-cpu", of("ij,ij->ij", a)) == f32);
  CHECK(under("pytorch-cpu", of("ij,ij->ij", short_a)) == f32);
  for (const char* preset : {"pytorch-cuda", "pytorch-cpu"})
    for (const char* equation : {"ij,kj->ik", "ij,ij->"})
      CHECK(under(preset, of(equation, a)) == bf16);
  CHECK(under("pytorch-cpu", [&] { return einsum("ij->i", a); }) == f32);
  CHECK(under("pytorch-cpu", [&] { return einsum("ij,jk,kl->il", a, a.permute(1, 0), a); }) ==
        bf16);
}

TEST_CASE("running products, losses and norms have PyTorch's dtypes") {
  const Tensor x = rand({3, 4}, bf16);
  const auto dtypes = [&](const std::function<Tensor()>& f) {
    return std::pair(under("pytorch-cuda", f), under("pytorch-cpu", f));
  };
  using Pair = std::pair<DType, DType>;
  CHECK(dtypes([&] { return cumprod(x, 0); }) == Pair{f32, bf16});
  CHECK(dtypes([&] { return triplet_margin_loss(x, x, x); }) == Pair{f32, f32});
  const Tensor sign = ones({3}, bf16);
  CHECK(dtypes([&] { return cosine_embedding_loss(x, x, sign); }) == Pair{f32, f32});
  CHECK(dtypes([&] { return margin_ranking_loss(x, x, x); }) == Pair{f32, f32});
  CHECK(dtypes([&] { return hinge_embedding_loss(x, x); }) == Pair{f32, f32});
  CHECK(dtypes([&] { return poisson_nll_loss(x, x); }) == Pair{f32, f32});
  CHECK(dtypes([&] { return multilabel_soft_margin_loss(x, x); }) == Pair{f32, bf16});
  CHECK(dtypes([&] { return ctc_loss(x, from({1, 2}), {3}, {2}); }) == Pair{bf16, f32});
  CHECK(dtypes([&] { return logcumsumexp(x, 0); }) == Pair{bf16, bf16});
  CHECK(dtypes([&] { return nansum(x) + nanmean(x); }) == Pair{bf16, bf16});
  CHECK(dtypes([&] { return cummax(x, 0).values; }) == Pair{bf16, bf16});
  CHECK(dtypes([&] { return std_mean(x).first; }) == Pair{bf16, bf16});
  CHECK(dtypes([&] { return histc(x); }) == Pair{bf16, bf16});
  for (const DType dtype : {f16, bf16})  // the plain one is banned, so this one is
    CHECK_THROWS_AS(amp::autocast(dtype, [&] { binary_cross_entropy(x, x, x); }), Error);
  CHECK(dtypes([&] { return bce_with_logits(x, x, {.weight = x, .pos_weight = x}); }) ==
        Pair{f32, f32});
  CHECK(dtypes([&] { return vector_norm(x, 1); }) == Pair{f32, bf16});
  CHECK(dtypes([&] { return normalize(x); }) == Pair{f32, bf16});
  CHECK(dtypes([&] { return softmax(x, 0, bf16); }) == Pair{bf16, bf16});
  CHECK(dtypes([&] { return logsigmoid(x); }) == Pair{bf16, bf16});
  CHECK(dtypes([&] { return glu(x); }) == Pair{bf16, bf16});
  CHECK(dtypes([&] {
          return index_add(x, 0, from({1}), x.reshape({3, 4})[0].unsqueeze(0));
        }) == Pair{bf16, bf16});
}

TEST_CASE("functions by index and of windows have PyTorch's dtypes") {
  const Tensor x = rand({3, 4}, bf16), wide = rand({1, 4}), i = from({1});
  const Tensor images = rand({1, 2, 4, 4}, bf16), grid = rand({1, 3, 3, 2}, bf16);
  const auto dtypes = [&](const std::function<Tensor()>& f) {
    return std::pair(under("pytorch-cuda", f), under("pytorch-cpu", f));
  };
  using Pair = std::pair<DType, DType>;
  const auto put = [&] { return index_put(x, {i}, wide); };
  CHECK(under("pytorch-cuda", put) == f32);
  CHECK_THROWS_AS(under("pytorch-cpu", put), DTypeError);
  const auto copied = [&] { return index_copy(x, 0, i, wide); };
  CHECK(under("pytorch-cpu", copied) == f32);
  CHECK_THROWS_AS(under("pytorch-cuda", copied), DTypeError);
  CHECK(dtypes([&] { return grid_sample(images, grid); }) == Pair{bf16, f32});
  CHECK(dtypes([&] { return grid_sample(images, cast(grid, f32)); }) == Pair{f32, f32});
  CHECK(dtypes([&] { return fold(unfold(images, {.kernel = 2}), 4, {.kernel = 2}); }) ==
        Pair{bf16, bf16});
  for (const ScatterReduction how : {ScatterReduction::mean, ScatterReduction::prod})
    CHECK(dtypes([&] {
            return scatter_reduce(x, 0, zeros({3, 4}, i64), x, how);
          }) == Pair{bf16, bf16});
  CHECK(dtypes([&] { return index_fill(x, 0, i, 2); }) == Pair{bf16, bf16});
  CHECK(dtypes([&] { return normal(x, x); }) == Pair{bf16, bf16});
}

TEST_CASE("results that are computed in f32 inside are rounded once") {
  const Tensor x = randn({4, 3}, bf16), t = rand({4, 3}, bf16), w = rand({3}, bf16) + 0.5;
  const auto wide = [](const Tensor& y) { return cast(y, f32); };
  CHECK(same_bits(bce_with_logits(x, t, {.pos_weight = w}),
                  cast(bce_with_logits(wide(x), wide(t), {.pos_weight = wide(w)}), bf16)));
  CHECK(same_bits(lerp(x, t, 0.3), cast(lerp(wide(x), wide(t), 0.3), bf16)));
  CHECK(same_bits(cumprod(x, 0), cast(cumprod(wide(x), 0), bf16)));
  CHECK(same_bits(logit(t), cast(logit(wide(t)), bf16)));
  CHECK(same_bits(vector_norm(x, 3), cast(vector_norm(wide(x), 3), bf16)));
}

}  // namespace
}  // namespace halftone::test::composed_test

// Conditions of collect(), report() and first_overflow() with several losses and optimizers: the
// result of each check is not lost, not assigned to another one, and outlives the gradients.

namespace halftone::test::several_losses_conditions_test {
namespace {

using amp::Decision;
using amp::GradScaler;
using doctest::Contains;
using Position = std::optional<std::size_t>;
using Values = std::vector<double>;

constexpr double infinity = std::numeric_limits<double>::infinity();

Tensor leaf() { return ones({2}).set_requires_grad(); }

/// Parameters under one optimizer (lr 0.5) and a scaler for two losses, at 8.
struct Case {
  explicit Case(Decision decision = Decision::where_free)
      : scaler({.init_scale = 8}, {.losses = 2, .decision = decision}) {}
  Tensor a = leaf(), b = leaf(), unused = leaf();
  optim::Sgd sgd{{unused, a, b}, 0.5};
  GradScaler scaler;

  void backward(const Tensor& loss, int which) { scaler.scale(loss, which).backward(); }
  void collect(const Tensor& loss, int which) {
    backward(loss, which);
    scaler.collect(sgd, which);
  }
  Values scales() const { return {scaler.scale_value(0), scaler.scale_value(1)}; }
  std::vector<int64_t> trackers() const {
    return {scaler.loss_scale(0).growth_tracker, scaler.loss_scale(1).growth_tracker};
  }
};

// --- the overflow flag of a loss's scale

TEST_CASE("the first micro-batch of a loss overflowed: a clean second one does not undo it") {
  Case run;
  run.collect(sum(run.a) * infinity, 0), run.collect(sum(run.a), 0), run.collect(sum(run.b), 1);
  CHECK_FALSE(run.scaler.step(run.sgd));
  run.scaler.update();
  CHECK(run.scales() == Values{4, 8});
}

TEST_CASE("a loss that was not collected had a clean step, if another one overflowed") {
  Case run;
  run.collect(sum(run.a) * infinity, 0);
  CHECK_FALSE(run.scaler.step(run.sgd));
  run.scaler.update();
  CHECK(run.scales() == Values{4, 8});
  CHECK(run.trackers() == std::vector<int64_t>{0, 1});
}

TEST_CASE("an overflow in an optimizer that collects nothing lowers the scale of every loss") {
  Case run;
  Tensor other = leaf();
  optim::Sgd plain({other}, 0.5);
  run.collect(sum(run.a), 0), run.collect(sum(run.b), 1);
  run.backward(sum(other) * infinity, 0);
  CHECK(run.scaler.step(run.sgd));
  CHECK_FALSE(run.scaler.step(plain));
  run.scaler.update();
  CHECK(run.scales() == Values{4, 4});
}

TEST_CASE("a reported overflow skips the step, also if the check or later reports are clean") {
  Tensor w = leaf();
  optim::Sgd sgd({w}, 0.5);
  GradScaler scaler({.init_scale = 8});
  const auto step = [&](double first, double second) {
    w.set_grad({});
    scaler.scale(sum(w)).backward();
    scaler.report(sgd, full({}, first)), scaler.report(sgd, full({}, second));
    const bool stepped = scaler.step(sgd);
    scaler.update();
    return stepped;
  };
  CHECK_FALSE(step(1, 0));
  CHECK(scaler.scale_value() == 4);
  CHECK_FALSE(step(0, 1));
  CHECK(scaler.scale_value() == 2);
  CHECK(step(0, 0));
  CHECK(scaler.scale_value() == 2);
}

TEST_CASE("a disabled scaler ignores reported overflows") {
  Tensor w = leaf();
  optim::Sgd sgd({w}, 0.5);
  GradScaler scaler({}, {.enabled = false});
  w.set_grad(full({2}, infinity));
  scaler.report(sgd, ones({}));
  CHECK_FALSE(scaler.first_overflow(sgd));
  CHECK(scaler.step(sgd));
}

// --- collecting

TEST_CASE("collecting skips parameters that no loss reaches, and losses that reach no parameter") {
  Case run;
  Tensor far = leaf();
  optim::Sgd other({far}, 0.5);
  run.collect(sum(run.a), 0);
  CHECK_NOTHROW(run.scaler.collect(other, 0));
  CHECK_THROWS_WITH_AS(run.scaler.step(other), Contains("has no gradients"), UsageError);
  run.collect(sum(run.b), 1);
  CHECK(run.scaler.step(run.sgd));
  CHECK_FALSE(run.unused.grad().defined());
  CHECK(run.unused.at({0}) == 1);
  CHECK(run.a.at({0}) == 0.5);
}

TEST_CASE("after a refused collect() the optimizer can do its plain step") {
  Case run;
  run.backward(sum(run.a), 0);
  CHECK_THROWS_WITH_AS(run.scaler.collect(run.sgd, 7), Contains("got loss 7, but the scaler has 2"),
                       UsageError);
  CHECK(run.scaler.step(run.sgd));
  CHECK(run.a.at({0}) == 0.5);
  CHECK_THROWS_WITH_AS(run.scaler.collect(run.sgd, 0), Contains("after unscale() or step()"),
                       UsageError);
}

TEST_CASE("a gradient that was set after collecting is used unchanged") {
  Case run;
  run.collect(sum(run.a), 0), run.collect(sum(run.a), 1);
  run.b.set_grad(full({2}, 3));
  CHECK(run.scaler.step(run.sgd));
  CHECK(run.a.at({0}) == 0);
  CHECK(run.b.at({0}) == 1 - 0.5 * 3);
}

TEST_CASE("f16 gradients are collected as f32, before they are divided; f32 ones are not copied") {
  const auto aside = [] { return memory_report().now_of(MemoryUse::master_gradient); };
  for (const DType dtype : {f16, f32}) {
    const int64_t before = aside();
    Tensor w = ones({2}, dtype).set_requires_grad();
    optim::Sgd sgd({w}, 0.5);
    GradScaler scaler({.init_scale = 1024}, {.losses = 2});
    scaler.scale(ones({}), 0);
    w.set_grad(full({2}, 0x1p-24, dtype));  // the smallest of f16
    scaler.collect(sgd, 0);
    CHECK(aside() - before == (dtype == f16 ? 2 * 4 : 0));
    CHECK(scaler.step(sgd));
    CHECK(w.grad().dtype() == f32);
    CHECK(w.grad().at({0}) == 0x1p-34);
  }
}

// --- the first overflow

TEST_CASE("the position of an overflow is known after its gradients are dropped") {
  Case run;
  std::vector<Tensor> all{run.a, run.b};
  SUBCASE("checked by unscale()") {
    run.backward(sum(run.a) + sum(run.b) * infinity, 0);
    run.scaler.unscale(run.sgd);
  }
  SUBCASE("checked by step()") {
    run.backward(sum(run.a) + sum(run.b) * infinity, 0);
    CHECK_FALSE(run.scaler.step(run.sgd));
  }
  SUBCASE("checked by step(), and reported before") {
    run.backward(sum(run.a) + sum(run.b) * infinity, 0);
    run.scaler.report(run.sgd, ones({}));
    CHECK_FALSE(run.scaler.step(run.sgd));
  }
  SUBCASE("checked by collect()") {
    run.collect(sum(run.a) + sum(run.b) * infinity, 0);
    CHECK_FALSE(run.scaler.step(run.sgd));
    run.sgd.zero_grad(false);
  }
  run.sgd.zero_grad();
  CHECK(run.scaler.first_overflow(run.sgd) == Position(1));  // among gradients: `unused` has none
}

TEST_CASE("the first position of several losses' overflows counts, in both kinds of decision") {
  for (const Decision decision : {Decision::where_free, Decision::in_update}) {
    Case run(decision);
    run.collect(sum(run.a) + sum(run.b) * infinity, 0);
    CHECK(run.scaler.first_overflow(run.sgd) == Position(1));
    run.collect(sum(run.a) * infinity, 1);
    CHECK(run.scaler.first_overflow(run.sgd) == Position(0));
    run.collect(sum(run.a), 1);
    CHECK(run.scaler.first_overflow(run.sgd) == Position(0));
  }
}

TEST_CASE("an overflow is the result of the check: later values of gradients do not count") {
  for (const Decision decision : {Decision::where_free, Decision::in_update}) {
    Case run(decision);
    run.backward(sum(run.a), 0);
    run.scaler.unscale(run.sgd);
    run.a.set_grad(full({2}, infinity));
    CHECK_FALSE(run.scaler.first_overflow(run.sgd));
  }
}

TEST_CASE("unscale() without gradients checks nothing") {
  Case run;
  run.scaler.scale(ones({}));
  run.scaler.unscale(run.sgd);
  CHECK_FALSE(run.scaler.first_overflow(run.sgd));
  run.backward(sum(run.a), 0);
  CHECK_NOTHROW(run.scaler.unscale(run.sgd));
}

}  // namespace
}  // namespace halftone::test::several_losses_conditions_test

// A training whose updates decide whether to skip, as on a GPU, compared with one whose host
// decides: the bits are the same, and values are read only on request.

namespace halftone::test::device_decisions_test {
namespace {

using amp::Decision;
using amp::GradScaler;
using amp::Policy;
using amp::Stepped;

constexpr double infinity = std::numeric_limits<double>::infinity();

/// A strategy's training of a network with batch norm.
struct Decided {
  StrategyCase run;
  Decided(const Policy& strategy, Decision decision) : run(strategy, network(), 4) {
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

Policy strategy_of(std::string_view name) {
  Policy strategy = Policy::named(name);
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
          Policy strategy = strategy_of(name);
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
    Policy strategy = strategy_of("amp-fp16");
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
