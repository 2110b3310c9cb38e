// Parameter groups, zero_grad, the state dictionary, and the ledger's bytes of an optimizer.
#include <doctest/doctest.h>

#include <halftone/autograd/ops.h>
#include <halftone/core/memory.h>
#include <halftone/optim/optim.h>

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
                   Rmsprop) {
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
