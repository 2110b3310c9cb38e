// Conditions of master weights that no other test checks: the owners of summed gradients and of
// random numbers, which tensors are copied, and the ledger's uses.
#include <set>

#include "cases.h"
#include "own_optimizer.h"

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
