// States of optimizers that no optimizer has written: the error names the entry, and nothing has
// changed.
#include <doctest/doctest.h>

#include <cmath>

#include <halftone/core/factory.h>
#include <halftone/optim/optim.h>

#include "../support.h"

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
