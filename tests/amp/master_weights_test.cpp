// Weights that do not fit short parameters: the forms compared over many steps, stochastic rounding
// and its mean, optimizers of users, states, mistakes.
#include <cmath>
#include <set>

#include "cases.h"
#include "support.h"

namespace halftone::test::master_weights_test {
namespace {

using amp::MasterWeights;
using amp::MasterWeightsOptions;
using Values = std::vector<double>;
using Make = std::function<std::unique_ptr<optim::Optimizer>(std::vector<Tensor>)>;

const std::map<std::string, Make> optimizers{
    {"sgd",
     [](std::vector<Tensor> p) {
       return std::make_unique<optim::Sgd>(
           p, optim::SgdOptions{.lr = 1e-2, .momentum = 0.9, .weight_decay = 1e-2});
     }},
    {"adamw",
     [](std::vector<Tensor> p) {
       return std::make_unique<optim::AdamW>(p,
                                             optim::AdamWOptions{.lr = 1e-3, .weight_decay = 0.1});
     }},
    {"rmsprop",
     [](std::vector<Tensor> p) {
       return std::make_unique<optim::Rmsprop>(p, optim::RmspropOptions{.lr = 1e-3});
     }},
    {"lion",
     [](std::vector<Tensor> p) {
       return std::make_unique<optim::Lion>(p, optim::LionOptions{.lr = 1e-3, .weight_decay = 0.1});
     }},
    {"lamb",
     [](std::vector<Tensor> p) {
       return std::make_unique<optim::Lamb>(p, optim::LambOptions{.lr = 1e-2, .weight_decay = 0.1});
     }},
    {"muon",
     [](std::vector<Tensor> p) {
       return std::make_unique<optim::Muon>(p, optim::MuonOptions{.lr = 1e-2});
     }},
    {"adagrad", [](std::vector<Tensor> p) { return std::make_unique<optim::Adagrad>(p); }},
    {"nadam", [](std::vector<Tensor> p) { return std::make_unique<optim::NAdam>(p); }},
    {"radam", [](std::vector<Tensor> p) { return std::make_unique<optim::RAdam>(p); }},
    {"adafactor", [](std::vector<Tensor> p) { return std::make_unique<optim::Adafactor>(p); }},
};
const std::vector<MasterWeightsOptions> exact{{.form = WeightForm::master},
                                              {.form = WeightForm::master, .fused = false},
                                              {.form = WeightForm::split},
                                              {.form = WeightForm::split_rounded}};

/// Two parameters (the second f32 if `mixed`) under an optimizer and masters, and random gradients.
struct Run {
  std::vector<Tensor> parameters;
  std::unique_ptr<optim::Optimizer> inner;
  std::unique_ptr<MasterWeights> masters;

  Run(const Make& make, std::optional<MasterWeightsOptions> options, bool mixed = false) {
    manual_seed(3);
    std::vector<Tensor> initial{randn({37, 11}), randn({5})};
    const DType first = options ? bf16 : f32;
    parameters = {cast(initial[0], first).clone(), cast(initial[1], mixed ? f32 : first).clone()};
    for (Tensor& p : parameters) p.set_requires_grad();
    inner = make(parameters);
    if (options) masters = std::make_unique<MasterWeights>(*inner, *options, initial);
  }
  void step(uint64_t seed) {
    manual_seed(seed);
    for (Tensor& p : parameters) p.set_grad(cast(cast(randn(p.shape()), bf16), p.dtype()));
    const optim::StepControl control{.factor = seed % 2 == 0 ? full({}, 0.5) : Tensor{}};
    masters ? masters->step(control) : inner->step(control);
  }
  Run& steps(int count) {
    for (int i = 0; i < count; ++i) step(uint64_t(1000 + i));
    return *this;
  }
  Tensor weight(std::size_t i) const {
    return masters ? masters->weight(i) : parameters[i].detach();
  }
};

/// Calls f(name, factory) for every optimizer on both CPU backends.
template <class F> void for_all(const F& f) {
  for (const std::string_view backend : {"reference", "cpu"})
    for (const auto& [name, make] : optimizers) {
      const CpuBackendScope scope(backend);
      CAPTURE(backend);
      CAPTURE(name);
      f(make);
    }
}

TEST_CASE("masters, fused or plain, and split weights are the f32 weights, bit for bit") {
  for_all([](const Make& make) {
    for (const bool mixed : {false, true}) {
      Run wide(make, {});
      wide.steps(50);
      for (const MasterWeightsOptions& options : exact) {
        CAPTURE(name(options.form));
        CAPTURE(options.fused);
        Run run(make, options, mixed);
        run.steps(50);
        for (const std::size_t i : {0, 1}) CHECK(same_bits(run.weight(i), wide.weight(i)));
        CHECK(run.parameters[1].dtype() == (mixed ? f32 : bf16));
      }
    }
  });
}

TEST_CASE("the parameter is the weight rounded to bf16: to nearest, or the upper half") {
  for (const MasterWeightsOptions& options : exact) {
    Run run(optimizers.at("adamw"), options);
    run.steps(3);
    const Tensor weight = run.weight(0), parameter = run.parameters[0].detach();
    if (options.form == WeightForm::master) CHECK(same_bits(parameter, cast(weight, bf16)));
    const auto w = weight.to_vector<float>(), p = parameter.to_vector<float>();
    for (std::size_t i = 0; i < w.size(); ++i)
      if (options.form == WeightForm::split)
        CHECK(p[i] == form::Split::encode(w[i], 0.0f, 0).parameter);
      else CHECK(std::abs(p[i] - w[i]) <= std::abs(w[i]) * 0x1p-8f);
  }
}

double largest_difference(const Run& a, const Run& b) {
  const Values x = a.weight(0).to_vector<double>(), y = b.weight(0).to_vector<double>();
  double largest = 0;
  for (std::size_t i = 0; i < x.size(); ++i) largest = std::max(largest, std::abs(x[i] - y[i]));
  return largest;
}

double largest_weight(const Run& run) {
  double largest = 0;
  for (const double x : run.weight(0).to_vector<double>()) largest = std::max(largest, std::abs(x));
  return largest;
}

TEST_CASE("compensated weights stay near the f32 weights, rounded ones do not") {
  for_all([](const Make& make) {
    const int steps = 50;
    Run wide(make, {}), kahan(make, {{.form = WeightForm::kahan}});
    Run rounded(make, {{.form = WeightForm::stochastic}});
    wide.steps(steps), kahan.steps(steps);
    // The compensation is below half a spacing of the weight, 2^-9 of it. Each step rounds
    // it to bf16, by up to 2^-9 of that. Decay and momentum propagate errors, but reduce
    // them.
    const double bound = steps * 0x1p-18 * 2 * largest_weight(wide);
    CHECK(largest_difference(kahan, wide) <= bound);
    const double of_rounded = largest_difference(rounded.steps(steps), wide);
    CHECK(of_rounded > bound);
    CHECK(of_rounded < steps * 0x1p-7 * largest_weight(wide));  // a spacing in each step
  });
}

// --- stochastic rounding

TEST_CASE("stochastic rounding repeats under its seed, on any number of threads") {
  for_all([](const Make& make) {
    const auto after = [&](uint64_t seed, int threads) {
      const Threads now(threads);
      return Run(make, {{.form = WeightForm::stochastic, .seed = seed}}).steps(10).weight(0);
    };
    const Tensor once = after(1, 1);
    CHECK(same_bits(once, after(1, 1)));
    CHECK(same_bits(once, after(1, 2)));
    CHECK_FALSE(same_bits(once, after(2, 1)));
  });
  // Enough elements for two threads.
  const auto large = [](int threads) {
    const Threads now(threads);
    Tensor w = ones({100000}, bf16).set_requires_grad();
    optim::Sgd sgd({w}, {.lr = 1});
    MasterWeights masters(sgd, {.form = WeightForm::stochastic});
    w.set_grad(full({100000}, 0x1p-9, bf16));
    masters.step();
    return w.detach();
  };
  CHECK(same_bits(large(1), large(2)));
}

TEST_CASE("stochastic rounding is unbiased") {
  const int64_t n = 100000;
  const double spacing = 0x1p-7;  // of bf16 from 1 to 2
  for (const std::string_view backend : {"reference", "cpu"}) {
    const CpuBackendScope scope(backend);
    for (const double part : {0.125, 0.3, 0.5, 0.9375}) {
      CAPTURE(part);
      Tensor w = ones({n}, bf16).set_requires_grad();
      optim::Sgd sgd({w}, {.lr = 1});
      MasterWeights masters(sgd, {.form = WeightForm::stochastic, .seed = 5});
      w.set_grad(full({n}, -part * spacing, bf16));
      const double p = -w.grad().at({0}) / spacing;  // as rounded to bf16
      masters.step();
      int64_t up = 0, down = 0;
      for (const double value : w.to_vector<double>())
        up += value == 1 + spacing, down += value == 1;
      CHECK(up + down == n);
      CHECK(std::abs(double(up) - double(n) * p) <= 5 * std::sqrt(double(n) * p * (1 - p)));
    }
  }
}

TEST_CASE("a saved state continues with the same random numbers") {
  const MasterWeightsOptions options{.form = WeightForm::stochastic, .seed = 9};
  Run whole(optimizers.at("adamw"), options),
      resumed(optimizers.at("adamw"), {{.form = options.form}});
  whole.steps(4);
  const auto state = copy_of(whole.masters->state_dict());
  const Tensor weight = whole.parameters[0].clone(), bias = whole.parameters[1].clone();
  CHECK(state.at("rounding").to_vector<int64_t>() == std::vector<int64_t>{9, 4});
  whole.steps(4);
  resumed.masters->load_state_dict(state);
  resumed.masters->set_weight(0, cast(weight, f32)),
      resumed.masters->set_weight(1, cast(bias, f32));
  CHECK(same_bits(resumed.steps(4).weight(0), whole.weight(0)));
}

// --- as an optimizer

TEST_CASE("the rate, through the wrapper") {
  Tensor w = ones({2}, bf16).set_requires_grad(), b = ones({2}, bf16).set_requires_grad();
  optim::Sgd sgd({{{w}, {.lr = 1}}, {{b}, {.lr = 2}}});
  MasterWeights masters(sgd);
  CHECK(masters.group_count() == 2);
  CHECK(masters.lr(1) == 2);
  masters.set_lr(0.25, 1);
  CHECK(sgd.lr(1) == 0.25);
  w.set_grad(ones({2}, bf16)), b.set_grad(ones({2}, bf16));
  masters.step();
  CHECK(masters.weight(0).at({0}) == 0);
  CHECK(masters.weight(1).at({0}) == 0.75);
  masters.set_lr(0.5);
  CHECK(sgd.lr(0) == 0.5);
}

TEST_CASE("an optimizer of a user has masters in the plain way, and is refused by the fused one") {
  Tensor w = ones({3}, bf16).set_requires_grad();
  OwnOptimizer own({w});
  CHECK_THROWS_WITH_AS(MasterWeights{own}, doctest::Contains("Use form master with .fused = false"),
                       UsageError);
  CHECK(own.own[0].dtype() == bf16);
  {
    MasterWeights masters(own, {.fused = false});
    w.set_grad(full({3}, 0x1p-10, bf16));
    masters.step();
    CHECK(masters.weight(0).at({0}) == 1 - 0x1p-11);
    CHECK(w.at({0}) == 1);  // rounded
    for (int i = 0; i < 7; ++i) masters.step();
    CHECK(w.at({0}) == 1 - 0x1p-8);
    w.set_grad(full({3}, 64, bf16));
    masters.step({.factor = scalar(0x1p-6)});  // scales the master's gradient, not the model's
    CHECK(masters.weight(0).at({0}) == 0.5 - 0x1p-8);
    CHECK(w.grad().at({0}) == 64);
    CHECK(masters.parameters()[0].body() == w.body());
    CHECK(own.own[0].dtype() == f32);
  }
  CHECK(own.own[0].body() == w.body());  // returned to the owner
}

TEST_CASE("weights of a group that is added later are kept as well") {
  for (const bool fused : {true, false})
    for (const WeightForm form : {WeightForm::master, WeightForm::split_rounded}) {
      if (!fused && form != WeightForm::master) continue;
      CAPTURE(fused);
      manual_seed(5);
      Tensor first = randn({40}).to(bf16).detach(), second = randn({24}).to(bf16).detach();
      Tensor wide = second.to(f32).clone();
      for (Tensor* x : {&first, &second, &wide}) x->set_requires_grad();
      optim::Sgd sgd({first}, {.lr = 1e-3, .momentum = 0.9}),
          of_wide({wide}, {.lr = 1e-3, .momentum = 0.9});
      amp::MasterWeights masters(sgd, {.form = form, .fused = fused});
      const auto step = [&](bool both) {
        const Tensor g = (randn({24}) * 0.01).to(bf16);
        first.set_grad(full({40}, 0.01, bf16));
        if (both) second.set_grad(g), wide.set_grad(g.to(f32)), of_wide.step();
        masters.step();
      };
      step(false);
      sgd.add_group({.parameters = {second}, .options = {.lr = 1e-3, .momentum = 0.9}});
      CHECK(masters.state_dict().contains(std::string(facts(form).companion) + ".1"));
      for (int i = 0; i < 20; ++i) step(true);
      CHECK(masters.group_count() == 2);
      CHECK(masters.group_parameters(1)[0].body() == second.body());
      CHECK(masters.weight(1).to_vector<float>() == wide.to_vector<float>());
      CHECK(second.to_vector<float>() == wide.to(bf16).to_vector<float>());
      CHECK(masters.gradients().size() == 2);
      masters.zero_grad();
      CHECK_FALSE(second.grad().defined());
    }
}

TEST_CASE("without its wrapper an optimizer steps the parameters directly") {
  Tensor w = ones({2}, bf16).set_requires_grad();
  optim::Sgd sgd({w}, {.lr = 1});
  { const MasterWeights masters(sgd); }
  w.set_grad(full({2}, 0x1p-10, bf16));
  for (int i = 0; i < 100; ++i) sgd.step();
  CHECK(w.at({0}) == 1);  // the rest of the weight is lost
}

TEST_CASE("f32 gradients: dropped after the step, and made again when the model's change") {
  for (const bool fused : {true, false}) {
    const int64_t before = memory_report().now_of(MemoryUse::master_gradient);
    Tensor w = ones({2}, bf16).set_requires_grad();
    optim::Sgd sgd({w}, {.lr = 1});
    MasterWeights masters(sgd, {.fused = fused});
    const auto gradient = [&] { return masters.gradients().at(0).at({0}); };
    w.set_grad(full({2}, 0.25, bf16));
    CHECK(gradient() == 0.25);
    CHECK((memory_report().now_of(MemoryUse::master_gradient) > before) == !fused);
    sum(w * full({2}, 0.5, bf16)).backward();  // accumulates in place
    CHECK(gradient() == 0.75);
    w.set_grad(full({2}, 0.125, bf16));  // replaced
    masters.step();
    CHECK(masters.weight(0).at({0}) == 0.875);
    CHECK(memory_report().now_of(MemoryUse::master_gradient) == before);
    masters.zero_grad();
    CHECK(masters.gradients().empty());
    masters.step();  // nothing to do
    CHECK(masters.weight(0).at({0}) == 0.875);
  }
}

TEST_CASE("plain: a gradient that the model has dropped is not used in a step") {
  Tensor w = ones({2}, bf16).set_requires_grad();
  optim::Sgd sgd({w}, {.lr = 1});
  MasterWeights masters(sgd, {.fused = false});
  w.set_grad(full({2}, 0.25, bf16));
  CHECK(masters.gradients().size() == 1);  // as clipping or a skipped step does
  w.set_grad({});
  masters.step();
  CHECK(masters.weight(0).at({0}) == 1);
}

TEST_CASE("plain: reading the gradients keeps the f32 sums") {
  Tensor w = zeros({2}, bf16).set_requires_grad();
  optim::Sgd sgd({w}, {.lr = 1});
  MasterWeights masters(sgd, {.fused = false, .accumulate_in_f32 = true});
  w.set_grad(full({2}, 1, bf16)), masters.collect();
  w.set_grad(full({2}, 2, bf16)), masters.gradients();
  masters.step();  // collects
  CHECK(masters.weight(0).at({0}) == -3);
}

// --- mistakes

TEST_CASE("parameters that cannot be wrapped") {
  Tensor wide = ones({2}).set_requires_grad(), half = ones({2}, f16).set_requires_grad(),
         w = ones({2}, bf16).set_requires_grad();
  optim::Sgd of_wide({wide}), of_half({half}), sgd({w});
  const auto refused = [](optim::Optimizer& inner, const MasterWeightsOptions& options,
                          const std::vector<Tensor>& initial = {}) {
    return MESSAGE_OF(Error, MasterWeights masters(inner, options, initial));
  };
  CHECK(refused(of_wide, {}).find("there is nothing to keep") != std::string::npos);
  for (const WeightForm form :
       {WeightForm::split, WeightForm::split_rounded, WeightForm::stochastic})
    CHECK(refused(of_half, {.form = form}) == "[MasterWeights] " + std::string(name(form)) +
                                                  " keeps bf16 parameters only, one is f16. Use "
                                                  "master for f16.");
  CHECK(refused(sgd, {.form = WeightForm::kahan, .fused = false}) ==
        "[MasterWeights] form kahan exists only fused. Use form master, or leave fused on.");
  CHECK(refused(sgd, {}, {ones({2}), ones({2})}).find("got 2 initial weights for 1 parameters") !=
        std::string::npos);
  for (const Tensor& wrong : {ones({3}), ones({2}, bf16)})
    CHECK(refused(sgd, {}, {wrong}).find("Give f32 tensors of the parameters' shapes") !=
          std::string::npos);
  w.set_grad(ones({2}, bf16));
  sgd.step();  // the optimizer has no wrapper left
  CHECK(w.at({0}) == doctest::Approx(1 - 1e-3).epsilon(epsilon(bf16)));
  CHECK(refused(of_half, {.form = WeightForm::kahan}).empty());
}

TEST_CASE("states that do not fit are refused, and nothing has changed") {
  const auto state_of = [](WeightForm form) {
    return copy_of(Run(optimizers.at("adamw"), {{.form = form}}).steps(2).masters->state_dict());
  };
  for (const WeightForm form : {WeightForm::master, WeightForm::split, WeightForm::split_rounded,
                                WeightForm::kahan, WeightForm::stochastic}) {
    CAPTURE(name(form));
    Run run(optimizers.at("adamw"), {{.form = form}});
    run.steps(3);
    const auto before = copy_of(run.masters->state_dict());
    const Tensor weight = run.weight(0).clone();
    const auto refuses = [&](const optim::NamedTensors& state) {
      CHECK_THROWS_AS(run.masters->load_state_dict(state), Error);
      CHECK(same_state(before, run.masters->state_dict()));
      CHECK(same_bits(weight, run.weight(0)));
    };
    for (const WeightForm other : {WeightForm::master, WeightForm::split, WeightForm::split_rounded,
                                   WeightForm::kahan, WeightForm::stochastic})
      if (other != form) refuses(state_of(other));
    const auto mine = state_of(form);
    for (const auto& [entry, x] : mine) {
      CAPTURE(entry);
      if (entry.starts_with("state.") || entry.starts_with("param_groups.")) continue;
      auto state = copy_of(mine);
      state[entry] = zeros({7}, x.dtype());
      refuses(state);
      state[entry] = zeros(x.shape(), f64);
      refuses(state);
      state.erase(entry);
      refuses(state);
    }
    auto state = copy_of(mine);
    state["nonsense"] = zeros({1});
    refuses(state);
    run.masters->load_state_dict(mine);
    CHECK(same_state(mine, run.masters->state_dict()));
  }
}

}  // namespace
}  // namespace halftone::test::master_weights_test

// Conditions of master weights that no other test checks: the owners of summed gradients and of
// random numbers, which tensors are copied, and the ledger's uses.

namespace halftone::testing {
namespace {

using amp::MasterWeights;
using doctest::Contains;
using Use = MemoryUse;

int64_t now_of(Use use) { return memory_report().now_of(use); }

/// Parameters of one shape under SGD of rate 1.
struct Case {
  std::vector<Tensor> parameters;
  optim::Sgd sgd;

  Case(const Shape& shape, const std::vector<DType>& dtypes)
      : parameters(made(shape, dtypes)), sgd(parameters, 1.0) {}
  static std::vector<Tensor> made(const Shape& shape, const std::vector<DType>& dtypes) {
    std::vector<Tensor> list;
    for (const DType dtype : dtypes) list.push_back(ones(shape, dtype).set_requires_grad());
    return list;
  }
  void set_grads(double value) {
    for (Tensor& p : parameters) p.set_grad(full(p.shape(), value, p.dtype()));
  }
};

TEST_CASE("an optimizer has a name, masters have the name of the optimizer that they wrap") {
  Case run({2}, {bf16});
  CHECK(run.sgd.name() == "Sgd");
  CHECK(MasterWeights(run.sgd, {}).name() == "Sgd");
  CHECK(test::OwnOptimizer({}).name() == "Optimizer");
}

// --- gradients

TEST_CASE("the update reads f32 sums, fused or plain") {
  for (const bool fused : {true, false}) {
    CAPTURE(fused);
    Case run({2}, {bf16});
    MasterWeights masters(run.sgd, {.fused = fused, .accumulate_in_f32 = true});
    run.set_grads(1), masters.collect();
    run.set_grads(0x1p-12), masters.collect();  // bf16 would lose it
    CHECK_FALSE(run.parameters[0].grad().defined());
    CHECK(masters.gradient(0).at({0}) == 1 + 0x1p-12);
    masters.step();
    CHECK(masters.weight(0).at({0}) == -0x1p-12);
    CHECK_FALSE(masters.gradient(0).defined());
    masters.step();  // the step dropped the sums
    CHECK(masters.weight(0).at({0}) == -0x1p-12);
  }
}

TEST_CASE("a skipped step drops the sums, and changes nothing") {
  for (const bool fused : {true, false}) {
    CAPTURE(fused);
    Case run({2}, {bf16});
    MasterWeights masters(run.sgd, {.fused = fused, .accumulate_in_f32 = true});
    run.set_grads(1), masters.collect();
    masters.step({.skip = ones({})});
    CHECK(masters.weight(0).at({0}) == 1);
    CHECK_FALSE(masters.gradient(0).defined());
    run.set_grads(0.25), masters.collect();
    masters.step({.factor = full({}, 2), .skip = zeros({})});
    CHECK(masters.weight(0).at({0}) == 0.5);
  }
}

TEST_CASE("parameters that need no master keep their own gradients, f64 in all of its digits") {
  const double fine = 1 + 0x1p-40;
  for (const bool fused : {true, false})
    for (const bool sums : {true, false}) {
      CAPTURE(fused);
      CAPTURE(sums);
      Case run({2}, {bf16, f64});
      MasterWeights masters(run.sgd, {.fused = fused, .accumulate_in_f32 = sums});
      run.set_grads(fine);
      const Tensor own = run.parameters[1].grad();
      if (sums) masters.collect();
      CHECK(masters.gradients().size() == 2);
      CHECK(masters.gradients()[1].body() == own.body());
      CHECK(run.parameters[1].grad().body() == own.body());
      masters.step();
      CHECK(masters.weight(1).at({0}) == 1 - fine);
      CHECK_FALSE(masters.companion(1).defined());
      CHECK(run.parameters[1].grad().body() == own.body());
    }
}

TEST_CASE("plain: a gradient that replaces one that was seen is the one that counts") {
  Case run({2}, {bf16});
  MasterWeights masters(run.sgd, {.fused = false});
  for (const double value : {0.5, 0.25, 0.125}) {  // none of them was ever written in place
    run.set_grads(value);
    CHECK(masters.gradients().at(0).at({0}) == value);
  }
  masters.step();
  CHECK(masters.weight(0).at({0}) == 0.875);
}

TEST_CASE("plain: a parameter without a gradient is not part of the step") {
  Case run({2}, {bf16, bf16, f32});
  MasterWeights masters(run.sgd, {.fused = false});
  run.set_grads(0.5);
  run.parameters[1].set_grad({});
  fill_with(run.parameters[1], 3);  // its master is 1
  CHECK(masters.gradients().size() == 2);
  masters.step();
  CHECK(run.parameters[0].at({0}) == 0.5);
  CHECK(run.parameters[1].at({0}) == 3);
  CHECK(run.parameters[2].at({0}) == 0.5);
  for (Tensor& p : run.sgd.group_parameters(0)) CHECK(p.requires_grad());
  CHECK_FALSE(run.sgd.group_parameters(0)[0].grad().defined());  // the master's, during the step
}

TEST_CASE("zero_grad() drops the model's gradients or writes zeros, and drops sums in any case") {
  Case run({2}, {bf16});
  MasterWeights masters(run.sgd, {.accumulate_in_f32 = true});
  run.set_grads(1), masters.collect();
  run.set_grads(2);
  masters.zero_grad(false);
  CHECK(run.parameters[0].grad().at({0}) == 0);
  CHECK(masters.gradient(0).at({0}) == 0);
  run.set_grads(1), masters.collect(), run.set_grads(2);
  masters.zero_grad();
  CHECK_FALSE(run.parameters[0].grad().defined());
  CHECK(masters.gradients().empty());
}

TEST_CASE("f32 sums are charged as masters' gradients, and temporary memory as workspace") {
  Case run({64}, {bf16});
  MasterWeights masters(run.sgd, {.accumulate_in_f32 = true});
  const int64_t before = now_of(Use::master_gradient);
  run.set_grads(1), masters.collect();
  CHECK(now_of(Use::master_gradient) == before + 64 * 4);
  run.set_grads(1);
  reset_peak_memory();
  const int64_t activations = now_of(Use::activation), workspace = now_of(Use::workspace);
  masters.collect();
  CHECK(memory_report().peak_of(Use::activation) == activations);
  CHECK(memory_report().peak_of(Use::workspace) == workspace + 64 * 4);
}

// --- weights

TEST_CASE("initial weights: one for each parameter; of form master they are the masters") {
  Case run({2}, {bf16, bf16});
  const std::vector<Tensor> initial{full({2}, 3), full({2}, 5)};
  CHECK_THROWS_WITH_AS(MasterWeights(run.sgd, {}, {initial[0]}), Contains("got 1 initial weights"),
                       UsageError);
  CHECK_THROWS_WITH_AS(MasterWeights(run.sgd, {}, {initial[0], full({2}, 5, f64)}),
                       Contains("initial weight 1 is [2] f64"), UsageError);
  const MasterWeights masters(run.sgd, {}, initial);
  for (const std::size_t i : {0, 1}) {
    CHECK(masters.companion(i).body() == initial[i].body());
    CHECK(masters.weight(i).storage() != initial[i].storage());  // a copy
  }
}

TEST_CASE(
    "set_weight() keeps the part that the form can represent, and refuses values that do not fit") {
  const double value = 1 + 0x1p-10;  // 1 in bf16
  for (const WeightForm form : {WeightForm::master, WeightForm::split, WeightForm::split_rounded,
                                WeightForm::kahan, WeightForm::stochastic}) {
    CAPTURE(name(form));
    Case run({2}, {bf16, f64});
    MasterWeights masters(run.sgd, {.form = form});
    masters.set_weight(0, full({2}, value));
    CHECK(masters.weight(0).at({0}) == (form == WeightForm::stochastic ? 1 : value));
    CHECK(run.parameters[0].at({0}) == 1);
    masters.set_weight(1, full({2}, value));
    CHECK(masters.weight(1).at({0}) == value);
    for (const Tensor& wrong : {full({3}, 7), full({2}, 7, bf16)})
      CHECK_THROWS_WITH_AS(masters.set_weight(0, wrong), Contains("Give an f32 tensor"),
                           ShapeError);
    CHECK(run.parameters[0].at({0}) == 1);
  }
}

TEST_CASE("parameter groups that do not exist are the inner optimizer's error") {
  Case run({2}, {bf16});
  MasterWeights masters(run.sgd);
  for (const int group : {-1, 1}) CHECK_THROWS_AS(masters.group_parameters(group), UsageError);
}

TEST_CASE("a loaded master sets its parameter; saved tensors need no gradient") {
  for (const bool fused : {true, false}) {
    CAPTURE(fused);
    Case run({2}, {bf16, f32}), other({2}, {bf16, f32});
    MasterWeights masters(run.sgd, {.fused = fused}), loaded(other.sgd, {.fused = fused});
    run.set_grads(0.5), masters.step();
    optim::NamedTensors state = masters.state_dict();
    CHECK_FALSE(state.contains("master.1"));
    CHECK_FALSE(state.contains("rounding"));
    CHECK_FALSE(state.at("master.0").requires_grad());
    loaded.load_state_dict(state);
    CHECK(other.parameters[0].at({0}) == 0.5);
    CHECK(loaded.weight(0).at({0}) == 0.5);
    CHECK(other.parameters[1].at({0}) == 1);  // the value of the model's state
    masters.set_weight(0, full({2}, 3));
    CHECK(loaded.weight(0).at({0}) == 0.5);  // a copy
    state["master.0"] = {};
    CHECK_THROWS_WITH_AS(loaded.load_state_dict(state), Contains("no entry \"master.0\""),
                         UsageError);
  }
}

// --- stochastic rounding

TEST_CASE("random numbers belong to one parameter and one step, also for very small parameters") {
  Case run({7}, {bf16, bf16, bf16, bf16});
  MasterWeights masters(run.sgd, {.form = WeightForm::stochastic, .seed = 3});
  std::set<std::vector<float>> drawn;
  const int steps = 8;
  for (int step = 0; step < steps; ++step) {
    for (const std::size_t i : {0, 1, 2, 3}) masters.set_weight(i, ones({7}));
    run.set_grads(-0x1p-8);  // up or down with equal chances
    masters.step();
    for (const Tensor& p : run.parameters) drawn.insert(p.to_vector<float>());
  }
  CHECK(drawn.size() > 3 * steps);  // of 4 x steps; some of the 2^7 patterns coincide
}

}  // namespace
}  // namespace halftone::testing
