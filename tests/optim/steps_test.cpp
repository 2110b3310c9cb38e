// Steps that the update itself may skip, step counts on the device, and rates for captured steps.
// They give the numbers of an optimizer that the host controls.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <iostream>
#include <limits>
#include <memory>
#include <sstream>

#include <doctest/doctest.h>

#include <halftone/backends/reference/reference.h>
#include <halftone/backends/registry.h>
#include <halftone/halftone.h>

#include "../amp/cases.h"
#include "../support.h"

namespace halftone::test::device_steps_test {
namespace {

using Parameters = std::vector<Tensor>;
using Make = std::function<std::unique_ptr<optim::Optimizer>(const Parameters&)>;

struct Named {
  const char* name;
  Make make;
};
template <class O, class Options> Make of(const Options& options) {
  return [=](const Parameters& p) { return std::make_unique<O>(p, options); };
}
const std::vector<Named> optimizers{
    {"Sgd", of<optim::Sgd>(optim::SgdOptions{.lr = 0.5})},
    {"Sgd, momentum",
     of<optim::Sgd>(optim::SgdOptions{.lr = 0.5, .momentum = 0.9, .dampening = 0.5})},
    {"Adam", of<optim::Adam>(optim::AdamOptions{.lr = 0.1})},
    {"AdamW", of<optim::AdamW>(optim::AdamWOptions{.lr = 0.1})},
    {"Rmsprop",
     of<optim::Rmsprop>(optim::RmspropOptions{.lr = 0.1, .momentum = 0.5, .centered = true})},
    {"Lion", of<optim::Lion>(optim::LionOptions{.lr = 0.01, .weight_decay = 0.1})},
    {"Adagrad", of<optim::Adagrad>(optim::AdagradOptions{.lr = 0.1, .lr_decay = 0.1})},
    {"NAdam", of<optim::NAdam>(optim::NAdamOptions{.lr = 0.1})},
    {"RAdam", of<optim::RAdam>(optim::RAdamOptions{.lr = 0.1})},
    {"Adafactor", of<optim::Adafactor>(optim::AdafactorOptions{.lr = 0.1, .weight_decay = 0.1})},
    {"Lamb", of<optim::Lamb>(optim::LambOptions{.lr = 0.01, .weight_decay = 0.1})},
    {"Muon", of<optim::Muon>(optim::MuonOptions{.lr = 0.01})}};

/// Two parameters under an optimizer, with or without a form of weights, and numbered gradients.
struct Run {
  Parameters parameters;
  std::unique_ptr<optim::Optimizer> inner;
  std::unique_ptr<amp::MasterWeights> masters;

  Run(const Make& make, std::optional<WeightForm> form, bool fused = true) {
    manual_seed(3);
    for (const Shape& shape : {Shape{5, 6}, Shape{7}})
      parameters.push_back(cast(randn(shape), form ? bf16 : f32).set_requires_grad());
    inner = make(parameters);
    if (form)
      masters = std::make_unique<amp::MasterWeights>(
          *inner, amp::MasterWeightsOptions{.form = *form, .fused = fused});
  }
  optim::Optimizer& optimizer() { return masters ? *masters : *inner; }
  void give(int step) {
    manual_seed(uint64_t(100 + step));
    for (Tensor& x : parameters) x.set_grad(cast(randn(x.shape()), x.dtype()));
    if (step % 3 == 2) parameters[1].set_grad({});  // its count stays one lower
  }
  optim::NamedTensors state() {
    optim::NamedTensors all = copy_of(optimizer().state_dict());
    for (std::size_t i = 0; i < parameters.size(); ++i)
      all["parameter" + std::to_string(i)] = parameters[i].detach().clone();
    all.erase("rounding");  // counts skipped steps as well
    return all;
  }
};

template <class Test> void every_run(const Test& test) {
  using enum WeightForm;
  for (const Named& named : optimizers)
    for (const std::optional<WeightForm> form :
         {std::optional<WeightForm>{}, {master}, {split}, {split_rounded}, {kahan}, {stochastic}})
      for (const bool fused : {true, false}) {
        if (!fused && form != master) continue;
        INFO(named.name, ", ", form ? std::string(name(*form)) : "plain", fused ? "" : ", apex");
        test([&] { return Run(named.make, form, fused); }, form);
      }
}

TEST_CASE("a skip that is 0 changes no bit of a step, and another one changes nothing") {
  every_run([](const auto& make, std::optional<WeightForm> form) {
    Run run = make(), wanted = make();
    const Tensor half = scalar(0.5);
    for (int step = 0; step < 9; ++step) {
      const bool skipped = step == 0 || step == 4 || step == 5;
      // Stochastic rounding draws numbers for skipped steps as well: only clean runs agree.
      if (form == WeightForm::stochastic && skipped) continue;
      run.give(step), wanted.give(step);
      const auto before = run.state();
      if (skipped) run.parameters[0].set_grad(full({5, 6}, NAN, run.parameters[0].dtype()));
      run.optimizer().step({.factor = step % 2 ? half : Tensor{}, .skip = scalar(skipped ? 1 : 0)});
      if (skipped) CHECK(same_state(run.state(), before));
      else if (step % 2) wanted.optimizer().step({.factor = half});
      else wanted.optimizer().step();
      CHECK(same_state(run.state(), wanted.state()));
    }
    run.give(20), wanted.give(20);  // and plain steps continue to count
    run.optimizer().step(), wanted.optimizer().step();
    CHECK(same_state(run.state(), wanted.state()));
  });
}

TEST_CASE("device counts start from the host's, and from loaded states") {
  every_run([](const auto& make, std::optional<WeightForm>) {
    Run run = make(), wanted = make(), resumed = make();
    const auto both = [&](int step, Run& lazy) {
      lazy.give(step), wanted.give(step);
      lazy.optimizer().step({.skip = zeros({})}), wanted.optimizer().step();
    };
    run.give(0), wanted.give(0);
    run.optimizer().step(), wanted.optimizer().step();
    both(1, run), both(2, run);
    CHECK(same_state(run.state(), wanted.state()));
    resumed.optimizer().load_state_dict(copy_of(run.optimizer().state_dict()));
    for (std::size_t i = 0; i < 2; ++i)
      backend_for(Device::cpu()).copy(run.parameters[i], resumed.parameters[i]);
    both(3, resumed);
    CHECK(same_state(resumed.state(), wanted.state()));
    // Loading restores the counts of an optimizer that has some.
    run.optimizer().load_state_dict(copy_of(resumed.optimizer().state_dict()));
    CHECK(same_state(run.optimizer().state_dict(), resumed.optimizer().state_dict()));
  });
}

TEST_CASE("a state of nothing but skipped steps is that of no steps") {
  for (const Named& named : optimizers) {
    Run run(named.make, {}), fresh(named.make, {});
    run.give(0);
    run.optimizer().step({.skip = ones({})});
    CHECK(same_state(run.optimizer().state_dict(), fresh.optimizer().state_dict()));
    run.optimizer().load_state_dict(copy_of(run.optimizer().state_dict()));
  }
}

TEST_CASE("momentum that is turned on after steps on the device begins as in a first step") {
  const auto made = [] {
    return Run(of<optim::Sgd>(optim::SgdOptions{.lr = 0.5, .dampening = 0.5}), {});
  };
  Run run = made(), wanted = made();
  for (int step = 0; step < 4; ++step) {
    run.give(step), wanted.give(step);
    if (step == 2)
      for (Run* r : {&run, &wanted}) dynamic_cast<optim::Sgd&>(*r->inner).options().momentum = 0.9;
    run.optimizer().step({.skip = zeros({})}), wanted.optimizer().step();
    CHECK(same_state(run.state(), wanted.state()));
  }
}

TEST_CASE("counts are optimizer state, 8 bytes each, and exist only if they are used") {
  const auto held = [] { return memory_report().now_of(MemoryUse::optimizer_state); };
  const int64_t before = held();
  Run run(of<optim::AdamW>(optim::AdamWOptions{}), {});
  run.give(0);
  run.optimizer().step();
  CHECK(held() - before == 37 * 8);
  run.optimizer().step({.skip = zeros({})});
  CHECK(held() - before == 37 * 8 + 2 * 8);
  run.optimizer().publish_rates();
  CHECK(held() - before == 37 * 8 + 2 * 8 + 8);
}

TEST_CASE("an optimizer of a user reads the flag by itself") {
  Tensor w = ones({2}).set_requires_grad();
  OwnOptimizer own({w});
  w.set_grad(ones({2}));
  own.step({.factor = scalar(2), .skip = ones({})});
  CHECK(w.at({0}) == 1);
  CHECK(w.grad().at({0}) == 1);
  own.step({.factor = scalar(2), .skip = zeros({})});
  CHECK(w.at({0}) == 0);
  Tensor narrow = ones({2}, bf16).set_requires_grad();
  OwnOptimizer inner({narrow});
  amp::MasterWeights masters(inner, {.fused = false});
  narrow.set_grad(ones({2}, bf16));
  masters.step({.skip = ones({})});
  CHECK(narrow.at({0}) == 1);
  masters.step({.skip = zeros({})});
  CHECK(narrow.at({0}) == 0.5);
}

// --- captures

/// Reports that it records, while it runs, and stores the calls that it got.
struct Recording final : ReferenceBackend {
  bool on = false;
  std::vector<Tensor> rates, counts;
  bool capturing() const override { return on; }
  void update(std::span<UpdateSlot> slots, const UpdateCall& call) override {
    rates.push_back(call.device_lr);
    for (const UpdateSlot& slot : slots) counts.push_back(slot.steps);
    ReferenceBackend::update(slots, call);
  }
};

TEST_CASE("captured steps read rate and counts from the device, others the rate from the host") {
  Recording backend;
  const CpuBackendReplacement scope(backend);
  Run run(of<optim::AdamW>(optim::AdamWOptions{.lr = 0.1}), {});
  auto& adamw = dynamic_cast<optim::AdamW&>(run.optimizer());
  run.give(0);
  adamw.step();
  CHECK_FALSE(backend.rates.at(0).defined());
  CHECK_FALSE(backend.counts.at(0).defined());
  backend.on = true;
  CHECK_THROWS_WITH_AS(adamw.step(), doctest::Contains("[AdamW] a step under capture reads its"),
                       UsageError);
  CHECK_THROWS_WITH_AS(adamw.step({.skip = zeros({})}),
                       doctest::Contains("[AdamW] a step under capture needs state"), UsageError);
  backend.on = false;
  adamw.publish_rates();
  backend.on = true, backend.rates.clear(), backend.counts.clear();
  adamw.step();
  const Tensor rate = backend.rates.at(0);
  CHECK(rate.item() == 0.1);
  CHECK(backend.counts.at(0).item() == 2);
  backend.on = false;
  // The values that a replay reads after the rate has changed.
  adamw.set_lr(0.25);
  CHECK(rate.item() == 0.25);
  adamw.options().lr = 0.5;
  CHECK(rate.item() == 0.25);
  adamw.publish_rates();
  CHECK(rate.item() == 0.5);
  adamw.load_state_dict(copy_of(adamw.state_dict()));
  CHECK(rate.item() == 0.5);
  backend.on = true;
  adamw.set_lr(0.75);
  CHECK(rate.item() == 0.75);
}

TEST_CASE("a captured step makes no state") {
  Recording backend;
  const CpuBackendReplacement scope(backend);
  Run run(of<optim::AdamW>(optim::AdamWOptions{.lr = 0.1}), {});
  run.optimizer().publish_rates();
  run.give(0);
  backend.on = true;
  CHECK_THROWS_WITH_AS(run.optimizer().step(),
                       doctest::Contains("Call publish_rates() and take a step before"),
                       UsageError);
}

}  // namespace
}  // namespace halftone::test::device_steps_test

// Parameter groups, zero_grad, the state dictionary, and the ledger's bytes of an optimizer.

namespace halftone::test::groups_and_state_test {

using namespace halftone::optim;

namespace {

Tensor leaf(const Shape& shape, double value = 1, DType dtype = f32) {
  return full(shape, value, dtype).set_requires_grad();
}
void give_gradients(std::vector<Tensor> parameters, double value = 1) {
  for (Tensor& p : parameters) p.set_grad(full(p.shape(), value, p.dtype()));
}
int64_t state_bytes() { return memory_report().now_of(MemoryUse::optimizer_state); }

}  // namespace

TEST_CASE("groups have their own options, and can be added") {
  const Tensor a = leaf({1}), b = leaf({1}), c = leaf({1});
  Sgd optimizer({{.parameters = {a}, .options = {.lr = 0.5}},
                 {.parameters = {b}, .options = {.lr = 0.25, .weight_decay = 1}}});
  optimizer.add_group({.parameters = {c}, .options = {.lr = 0.125}});
  give_gradients({a, b, c});
  optimizer.step();
  CHECK(a.item() == 0.5);
  CHECK(b.item() == 0.5);  // 1 - 0.25 * (1 + 1)
  CHECK(c.item() == 0.875);

  CHECK(optimizer.group_count() == 3);
  CHECK(optimizer.lr() == 0.5);
  CHECK(optimizer.lr(2) == 0.125);
  optimizer.set_lr(0.75);
  CHECK(optimizer.lr(1) == 0.75);
  optimizer.options(1).weight_decay = 0;
  optimizer.set_lr(0, 0);
  optimizer.step();
  CHECK(a.item() == 0.5);
  CHECK(b.item() == -0.25);
  CHECK(optimizer.parameters().size() == 3);
  CHECK(optimizer.group_parameters(1)[0].body() == b.body());

  CHECK_THROWS_WITH_AS(optimizer.set_lr(-2, 1), "[Sgd] lr is -2. Use 0 or more.", UsageError);
  CHECK(optimizer.lr(1) == 0.75);  // unchanged
  CHECK_THROWS_WITH_AS(optimizer.options(3),
                       "[Sgd] there is no parameter group 3 among 3. Count from 0.", UsageError);
  CHECK_THROWS_WITH_AS(optimizer.add_group({.parameters = {a}}),
                       "[Sgd] parameter 0, [1] f32, appears twice. Name each parameter once.",
                       UsageError);
}

TEST_CASE("zero_grad drops gradients or writes zeros") {
  const Tensor p = leaf({2});
  Sgd optimizer({p});
  give_gradients({p}, 3);
  const Tensor gradient = p.grad();
  optimizer.zero_grad(false);
  CHECK(p.grad().body() == gradient.body());
  CHECK(gradient.to_vector<double>() == std::vector<double>{0, 0});
  optimizer.zero_grad();
  CHECK_FALSE(p.grad().defined());
}

TEST_CASE("a step keeps no reference to a gradient") {
  const Tensor p = leaf({1000});
  AdamW optimizer({p});
  for (int i = 0; i < 2; ++i) {
    {
      const MemoryScope scope(MemoryUse::gradient);
      give_gradients({p});
    }
    CHECK(memory_report().now_of(MemoryUse::gradient) == 4000);
    optimizer.step();
    optimizer.zero_grad();
    CHECK(memory_report().now_of(MemoryUse::gradient) == 0);
  }
}

TEST_CASE("state bytes are exact, and steps after the first allocate nothing") {
  const int64_t before = state_bytes();
  {
    const Tensor p = leaf({100, 10}), q = leaf({7}, 1, bf16), r = leaf({3}, 1, f64),
                 idle = leaf({50});
    AdamW adam({p, q, r, idle});
    Sgd plain({leaf({8})});
    CHECK(state_bytes() == before);  // the state comes with the first step
    give_gradients({p, q, r}), give_gradients(plain.parameters());
    adam.step(), plain.step();
    CHECK(state_bytes() - before == 2 * (4 * 1000 + 4 * 7 + 8 * 3));
    reset_peak_memory();
    const int64_t blocks = cache_statistics().system_allocations, peak = memory_report().total_peak;
    for (int i = 0; i < 3; ++i) adam.step();
    CHECK(cache_statistics().system_allocations == blocks);
    CHECK(memory_report().total_peak == peak);

    Sgd momentum({leaf({5}, 1, bf16)}, {.momentum = 0.9, .state_dtype = bf16});
    Rmsprop rmsprop({leaf({6})}, {.momentum = 0.9, .centered = true});
    give_gradients(momentum.parameters()), give_gradients(rmsprop.parameters());
    const int64_t so_far = state_bytes();
    momentum.step(), rmsprop.step();
    CHECK(state_bytes() - so_far == 2 * 5 + 3 * 4 * 6);
  }
  CHECK(state_bytes() == before);
}

TEST_CASE("the state dictionary has PyTorch's names") {
  const Tensor a = leaf({2}), b = leaf({3});
  Adam adam({{.parameters = {a}}, {.parameters = {b}, .options = {.lr = 0.5}}});
  give_gradients({b});
  adam.step();
  std::vector<std::string> names;
  for (const auto& [name, x] : adam.state_dict()) names.push_back(name);
  CHECK(names == std::vector<std::string>{"param_groups.0.amsgrad", "param_groups.0.betas",
                                          "param_groups.0.eps", "param_groups.0.lr",
                                          "param_groups.0.maximize", "param_groups.0.params",
                                          "param_groups.0.weight_decay", "param_groups.1.amsgrad",
                                          "param_groups.1.betas", "param_groups.1.eps",
                                          "param_groups.1.lr", "param_groups.1.maximize",
                                          "param_groups.1.params", "param_groups.1.weight_decay",
                                          "state.1.exp_avg", "state.1.exp_avg_sq", "state.1.step"});
  CHECK(adam.state_dict().at("param_groups.1.lr").item() == 0.5);
  CHECK(adam.state_dict().at("param_groups.1.params").item() == 1);

  Sgd sgd({a}, {.momentum = 0.9});
  give_gradients({a});
  sgd.step();
  CHECK(sgd.state_dict().contains("state.0.momentum_buffer"));
  CHECK_FALSE(sgd.state_dict().contains("state.0.step"));
  Rmsprop rmsprop({a}, {.momentum = 0.9, .centered = true});
  rmsprop.step();
  for (const char* name :
       {"state.0.step", "state.0.square_avg", "state.0.momentum_buffer", "state.0.grad_avg"})
    CHECK(rmsprop.state_dict().contains(name));
}

TEST_CASE_TEMPLATE("a resumed optimizer continues as if it had not stopped", Kind, Sgd, Adam, AdamW,
                   Rmsprop, Adagrad, NAdam, RAdam, Adafactor) {
  const Tensor a = leaf({4}), b = leaf({4});
  Kind first({a});
  if constexpr (requires { first.options().momentum; }) first.options().momentum = 0.9;
  first.set_lr(0.125);
  for (const double g : {1.0, -2.0}) give_gradients({a}, g), first.step();

  Tensor copy = a.clone().set_requires_grad();
  Kind second({copy});
  second.load_state_dict(first.state_dict());
  CHECK(second.lr() == 0.125);
  for (const double g : {0.5, 3.0}) {
    give_gradients({a, copy}, g);
    first.step(), second.step();
    CHECK(copy.to_vector<float>() == a.to_vector<float>());
  }
}

TEST_CASE("loading copies, keeps dtypes, and charges optimizer_state") {
  const Tensor p = leaf({10}, 1, bf16);
  AdamW optimizer({p});
  give_gradients({p});
  optimizer.step();
  NamedTensors state = optimizer.state_dict();
  state.at("state.0.exp_avg") = full({10}, 0.5, f16);  // saved in another dtype
  const int64_t before = state_bytes();
  AdamW other({p});
  other.load_state_dict(state);
  CHECK(state_bytes() - before == 10 * (2 + 4));
  CHECK(other.state_dict().at("state.0.exp_avg").dtype() == f16);
  CHECK(other.state_dict().at("state.0.exp_avg_sq").dtype() == f32);
  CHECK(other.state_dict().at("state.0.exp_avg_sq").body() !=
        optimizer.state_dict().at("state.0.exp_avg_sq").body());

  other.load_state_dict(AdamW({p}).state_dict());  // the state of an optimizer that never stepped
  CHECK_FALSE(other.state_dict().contains("state.0.step"));
  CHECK(state_bytes() == before);
}

TEST_CASE("everything that does not fit is reported together, and nothing changes") {
  const Tensor p = leaf({2}), q = leaf({3});
  AdamW optimizer({p, q});
  give_gradients({p, q});
  optimizer.step();
  NamedTensors state = optimizer.state_dict();
  state["state.0.exp_avg"] = zeros({5});
  state.erase("state.1.exp_avg_sq"), state.erase("state.1.step"), state.erase("param_groups.0.lr");
  state["state.7.exp_avg"] = zeros({2});
  optimizer.set_lr(0.5);
  CHECK_THROWS_WITH_AS(
      optimizer.load_state_dict(state),
      "[AdamW.load_state_dict] the state does not fit: state.0.exp_avg is [5] instead of [2], "
      "state.1.step is missing, state.1.exp_avg_sq is missing, state.7.exp_avg is unknown. Load "
      "what "
      "the same kind of optimizer saved for the same parameters.",
      UsageError);
  CHECK(optimizer.lr() == 0.5);
  CHECK(optimizer.state_dict().at("state.0.exp_avg").shape() == Shape{2});

  CHECK_THROWS_WITH_AS(
      AdamW({p}).load_state_dict(optimizer.state_dict()),
      "[AdamW.load_state_dict] the state does not fit: param_groups.0.params names 2 parameters, "
      "the "
      "group has 1, state.1.exp_avg is unknown, state.1.exp_avg_sq is unknown, state.1.step is "
      "unknown. Load what the same kind of optimizer saved for the same parameters.",
      UsageError);
  CHECK_THROWS_WITH_AS(
      AdamW({p}).load_state_dict({}),
      "[AdamW.load_state_dict] the state does not fit: param_groups.0.params is missing. Load what "
      "the same kind of optimizer saved for the same parameters.",
      UsageError);
}

TEST_CASE("a parameter that was computed is refused") {
  const Tensor p = leaf({2});
  CHECK_THROWS_WITH_AS(Sgd({p * 2.0}),
                       "[Sgd] parameter 0, [2] f32, was computed. Only leaves can be trained.",
                       UsageError);
}

TEST_CASE("an optimizer trains: it finds the minimum of a bowl") {
  const Tensor p = leaf({3}, 5);
  AdamW optimizer({p}, {.lr = 0.1, .weight_decay = 0});
  for (int i = 0; i < 300; ++i) {
    optimizer.zero_grad();
    sum(square(p - from({1.0, 2, 3}))).backward();
    optimizer.step();
  }
  const std::vector<double> found = p.to_vector<double>();
  for (std::size_t i = 0; i < 3; ++i)
    CHECK(found[i] == doctest::Approx(double(i + 1)).epsilon(0.01));
}

}  // namespace halftone::test::groups_and_state_test

// States of optimizers that no optimizer has written: the error names the entry, and nothing has
// changed.

namespace halftone::test::hostile_state_test {
namespace {

struct Stepped {
  Tensor parameter = zeros({2}).set_requires_grad(true);
  optim::AdamW optimizer{{parameter}};
  Stepped() {
    parameter.set_grad(ones({2}));
    optimizer.step();
  }
  /// The error of loading the state with one entry changed.
  std::string refusal(const std::string& name, const Tensor& x) {
    optim::NamedTensors before = optimizer.state_dict(), state = before;
    state[name] = x;
    const std::string message = message_of<Error>([&] { optimizer.load_state_dict(state); });
    const optim::NamedTensors after = optimizer.state_dict();
    CHECK(after.size() == before.size());
    for (const auto& [entry, y] : after)
      CHECK(y.to_vector<double>() == before.at(entry).to_vector<double>());
    return message;
  }
};

TEST_CASE("options of a state are checked as a program's are, and named") {
  Stepped test;
  const std::string begin = "[AdamW.load_state_dict] the state does not fit: ";
  for (const double lr : {std::nan(""), -1.0, double(INFINITY)})
    CHECK(test.refusal("param_groups.0.lr", scalar(lr, f64))
              .starts_with(begin + "param_groups.0.lr is "));
  for (const double beta : {1.0, -0.1, std::nan("")})
    CHECK(contains(test.refusal("param_groups.0.betas", from({0.9, beta}, f64)),
                   begin + "param_groups.0.beta"));
  CHECK(contains(test.refusal("param_groups.0.eps", scalar(-1, f64)), "param_groups.0.eps is -1"));
  CHECK(contains(test.refusal("param_groups.0.weight_decay", scalar(NAN, f64)),
                 "param_groups.0.weight_decay is nan"));
  CHECK(contains(test.refusal("param_groups.0.lr", zeros({2}, f64)),
                 "param_groups.0.lr is [2] instead of []"));
  CHECK(contains(test.refusal("param_groups.0.params", scalar(NAN, f64)),
                 "param_groups.0.params is f64 instead of i64"));
}

TEST_CASE("steps are counts, moments have the dtypes of states") {
  Stepped test;
  for (const double step : {-1.0, 0.5, 0x1p53, 1e300, double(INFINITY), std::nan("")}) {
    CAPTURE(step);
    CHECK(contains(test.refusal("state.0.step", scalar(step, f64)), "state.0.step is "));
    CHECK(contains(test.refusal("state.0.step", scalar(step, f64)),
                   " instead of a whole number from 0 below 2^53"));
  }
  CHECK(contains(test.refusal("state.0.step", full({}, 0x1p62, i64)), "state.0.step is 4.6"));
  for (const DType dtype : {boolean, u8, i32, i64, f8_e4m3, f8_e5m2}) {
    CAPTURE(name(dtype));
    CHECK(contains(
        test.refusal("state.0.exp_avg_sq", zeros({2}, dtype)),
        "state.0.exp_avg_sq is " + std::string(name(dtype)) + " instead of f64, f32, f16 or bf16"));
  }
}

TEST_CASE("names of a state are printable, and long lists of them are shortened") {
  Stepped test;
  CHECK(contains(test.refusal("\x1b[2J", zeros({1})), "fit: \\x1b[2J is unknown. Load"));
  optim::NamedTensors state = test.optimizer.state_dict();
  for (int i = 0; i < 1000; ++i) state["x" + std::to_string(i)] = zeros({1});
  const std::string message =
      message_of<UsageError>([&] { test.optimizer.load_state_dict(state); });
  CHECK(contains(message, " and 980 more. Load"));
}

}  // namespace
}  // namespace halftone::test::hostile_state_test

// A loop without amp::Training prints the shapes of parameters that describe() leaves out, once,
// and only if an optimizer trains other parameters.

namespace halftone::test::forgotten_parameters_test {
namespace {

struct Forgetful final : nn::Layer {
  nn::Linear known{3, 2}, left_out{2, 5};
  Tensor forward(const Tensor& x) const override { return left_out(known(x)); }
  void describe(nn::Fields& field) override { field("known", known); }
};

TEST_CASE("a plain loop is told once of parameters that describe() leaves out") {
  Forgetful model;
  optim::Sgd sgd(model.parameters(), 0.1);
  const auto backward = [&] { sum(model(ones({4, 3}))).backward(); };
  const std::string text = told(backward);
  CHECK(
      text.starts_with("[backward] the loss depends on parameters that no optimizer has and no "
                       "module's describe() names: "));
  CHECK(text.find("[5, 2] f32") != std::string::npos);
  CHECK(text.find("[5] f32") != std::string::npos);
  CHECK(text.ends_with(". Name each in the describe() of its module.\n"));
  CHECK(told(backward).empty());
}

TEST_CASE("nothing is told where nothing is left out, or nothing trains") {
  Forgetful without_optimizer;
  CHECK(told([&] { sum(without_optimizer(ones({4, 3}))).backward(); }).empty());
  Forgetful whole;
  std::vector<Tensor> all = whole.parameters();
  all.push_back(whole.left_out.weight), all.push_back(whole.left_out.bias);
  optim::Sgd sgd(all, 0.1);  // which has them, whatever describe() says
  CHECK(told([&] { sum(whole(ones({4, 3}))).backward(); }).empty());
  Forgetful frozen;
  frozen.left_out.set_requires_grad(false);
  optim::Sgd of_known(frozen.parameters(), 0.1);
  CHECK(told([&] { sum(frozen(ones({4, 3}))).backward(); }).empty());
}

}  // namespace
}  // namespace halftone::test::forgotten_parameters_test

// Clipping: the norm over all tensors, the factor, low-precision gradients, and values that are not
// finite.

namespace halftone::test::clip_grad_test {

using namespace halftone::optim;

namespace {

Tensor with_gradient(const std::vector<double>& gradient, DType dtype = f32) {
  Tensor p = zeros({int64_t(gradient.size())}, dtype).set_requires_grad();
  p.set_grad(from_vector(gradient, p.shape(), dtype));
  return p;
}

}  // namespace

TEST_CASE("the norm is that of all gradients together") {
  const Tensor a = with_gradient({3, 0}), b = with_gradient({4}),
               idle = zeros({2}).set_requires_grad();
  const uint64_t version = a.grad().storage()->version();
  CHECK(clip_grad_norm({a, idle, b}, 2.5).item() == 5);
  CHECK(a.grad().to_vector<double>()[0] == doctest::Approx(3 * 2.5 / (5 + 1e-6)));
  CHECK(b.grad().item() == doctest::Approx(2));
  CHECK(a.grad().storage()->version() > version);
  CHECK_FALSE(idle.grad().defined());
}

TEST_CASE("gradients within the limit do not change a bit") {
  const Tensor a = with_gradient({0.3, -0.4});
  const std::vector<float> before = a.grad().to_vector<float>();
  const Tensor norm = clip_grad_norm({a}, 1);
  CHECK(norm.item() == doctest::Approx(0.5));
  CHECK(norm.dtype() == f32);
  CHECK(norm.shape() == Shape{});
  CHECK(a.grad().to_vector<float>() == before);
}

TEST_CASE("no gradients: the norm is 0") {
  CHECK(clip_grad_norm({zeros({2}).set_requires_grad()}, 1).item() == 0);
  CHECK(clip_grad_norm({}, 1).item() == 0);
}

TEST_CASE("the norm of f16 gradients does not overflow in f16") {
  const Tensor a = with_gradient({60000, 60000}, f16), b = with_gradient({1}, bf16);
  CHECK(clip_grad_norm({a, b}, 1).item() == doctest::Approx(60000 * std::sqrt(2.0)));
  CHECK(a.grad().dtype() == f16);
  CHECK(a.grad().to_vector<double>()[0] == doctest::Approx(std::sqrt(0.5)).epsilon(0.001));
}

TEST_CASE("gradients whose squares leave f32 are clipped as others") {
  for (const DType dtype : {f32, bf16})
    for (const double g : {1e19, 3e37, 1e-25, 1e-30}) {
      CAPTURE(g);
      const Tensor a = with_gradient(std::vector<double>(5000, g), dtype);
      const double before = a.grad().to_vector<double>()[0], norm = before * std::sqrt(5000.0),
                   limit = norm > 1 ? norm / 3 : 2;
      const double found = clip_grad_norm({a}, limit).item();
      if (norm < facts(f32).max) CHECK(found == doctest::Approx(norm).epsilon(1e-6));
      const double wanted = before * std::min(1.0, limit / (norm + 1e-6));
      CHECK(std::abs(a.grad().to_vector<double>()[0] - wanted) <= epsilon(dtype) * wanted);
    }
}

TEST_CASE("a value that is not finite is visible, or throws on request") {
  const double infinity = std::numeric_limits<double>::infinity();
  const Tensor a = with_gradient({infinity, 1}), b = with_gradient({std::nan(""), 1});
  CHECK_THROWS_WITH_AS(
      clip_grad_norm({a}, 1, {.error_if_nonfinite = true}),
      "[clip_grad_norm] the norm of the gradients is inf. Unscale them first, or turn "
      "error_if_nonfinite off.",
      UsageError);
  CHECK(a.grad().to_vector<double>()[1] == 1);
  CHECK(clip_grad_norm({a}, 1).item() == infinity);
  CHECK(a.grad().to_vector<double>()[1] == 0);
  CHECK(std::isnan(clip_grad_norm({b}, 1).item()));
  CHECK(std::isnan(b.grad().to_vector<double>()[1]));
}

TEST_CASE("clipping by value, and through an optimizer's gradients") {
  const Tensor a = with_gradient({-3, 0.5, 2});
  clip_grad_value({a}, 1);
  CHECK(a.grad().to_vector<double>() == std::vector<double>{-1, 0.5, 1});
  std::vector<Tensor> gradients = Sgd({a}).gradients();
  clip_gradients_norm(gradients, 0.75);
  CHECK(a.grad().to_vector<double>()[0] == doctest::Approx(-0.5));
}

TEST_CASE("limits must not be negative") {
  CHECK_THROWS_WITH_AS(clip_grad_norm({}, -1), "[clip_grad_norm] max_norm is -1. Use 0 or more.",
                       UsageError);
  CHECK_THROWS_WITH_AS(clip_grad_value({}, -1), "[clip_grad_value] limit is -1. Use 0 or more.",
                       UsageError);
}

}  // namespace halftone::test::clip_grad_test
