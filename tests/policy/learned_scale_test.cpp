// Learned scales: LSQ's formulas in double, one step of Adam by hand, and training with them.
#include <cmath>

#include <doctest/doctest.h>

#include <halftone/amp/resolved.h>
#include <halftone/amp/training.h>
#include <halftone/autograd/ops.h>
#include <halftone/nn/layers.h>
#include <halftone/optim/optimizers.h>

#include "amp/cases.h"
#include "policy/policy_cases.h"
#include "support.h"

namespace halftone::test::learned_scale_test {
namespace {

std::string rule(const std::string& entries) {
  return R"({"halftone_policy": 1, "name": "t", "extends": "fp32",
             "rules": [{"match": {"op": "linear"}, )" +
         entries + "}]}";
}
const std::string
    per_tensor =
        R"({"format": "int4", "scale": {"per": "tensor", "learned": {"gradient": "lsq"}}})",
    per_row = R"({"format": "int4", "scale": {"per": "row", "learned": {"gradient": "lsq"}}})";

struct Learns {
  nn::Sequential model;
  optim::Sgd sgd;
  amp::Training training;

  explicit Learns(const std::string& entries)
      : model((manual_seed(1), nn::Linear(6, 3, {.bias = false}))),
        sgd(model.parameters(), {.lr = 0.01}),
        training(policy::read_text(rule(entries)), model, sgd) {}
  Tensor& weight() { return static_cast<nn::Linear&>(model[0]).weight; }
  Tensor pass(const Tensor& x) {
    training.zero_grad();
    const Tensor y = training.forward(model, x);
    training.backward((y * y).sum());
    return y;
  }
  double entry(const std::string& name, int64_t at = 0) {
    for (const auto& [key, x] : training.state_dict())
      if (key.ends_with(name)) return x.to_vector<double>()[std::size_t(at)];
    return std::nan("");
  }
};

/// int4 is a quarter of whole numbers to 7.
double on_int4(double v) { return std::min(std::max(std::nearbyint(v * 4), -7.0), 7.0) / 4; }

TEST_CASE("learned scales: forward, both gradients and the step are LSQ's, in double") {
  for (const bool rows : {false, true}) {
    INFO("per row: ", rows);
    Learns run("\"weight\": " + (rows ? per_row : per_tensor));
    const std::vector<float> w = floats(run.weight());
    const Tensor x = randn({5, 6});
    const std::vector<float> in = floats(x);
    const Tensor y = run.pass(x);
    const std::vector<float> out = floats(y), dw = floats(run.weight().grad());
    std::vector<double> s(3), ds(3, 0);
    const int64_t n = rows ? 6 : 18;
    for (int r = 0; r < 3; ++r) {
      double sum = 0;
      for (int64_t i = 0; i < 18; ++i)
        if (!rows || i / 6 == r) sum += std::abs(double(w[std::size_t(i)]));
      s[std::size_t(r)] = double(float(4 * 2 * sum / double(n) / std::sqrt(7.0)));
    }
    for (int64_t r = 0; r < 3; ++r)
      for (int64_t c = 0; c < 6; ++c) {
        const double scale = s[std::size_t(r)], v = double(w[std::size_t(r * 6 + c)]) / scale;
        double dq = 0;  // of the rounded weight
        for (int64_t b = 0; b < 5; ++b)
          dq += 2 * double(out[std::size_t(b * 3 + r)]) * double(in[std::size_t(b * 6 + c)]);
        const bool inside = std::abs(v) < 1.75;
        CHECK(dw[std::size_t(r * 6 + c)] == doctest::Approx(inside ? dq : 0).epsilon(1e-4));
        ds[rows ? std::size_t(r) : 0] += dq * (inside ? on_int4(v) - v : on_int4(v));
      }
    for (int64_t b = 0; b < 5; ++b)
      for (int64_t r = 0; r < 3; ++r) {
        double sum = 0;
        for (int64_t c = 0; c < 6; ++c)
          sum += double(in[std::size_t(b * 6 + c)]) * s[std::size_t(r)] *
                 on_int4(double(w[std::size_t(r * 6 + c)]) / s[std::size_t(r)]);
        CHECK(out[std::size_t(b * 3 + r)] == doctest::Approx(sum).epsilon(1e-5));
      }
    run.training.step();
    for (int64_t r = 0; r < (rows ? 3 : 1); ++r) {
      // The first step of Adam is lr times the sign of the gradient; its moment is a tenth of it.
      const double sign = ds[std::size_t(r)] > 0 ? 1 : -1, first = s[std::size_t(r)];
      CHECK(run.entry("0/linear.0.weight1/ratio", r) == doctest::Approx(1 - 0.01 * sign));
      CHECK(run.entry("0/linear.0.weight1/first", r) == doctest::Approx(first).epsilon(1e-6));
      CHECK(run.entry("exp_avg", r) ==
            doctest::Approx(0.1 * ds[std::size_t(r)] * first / std::sqrt(7.0 * double(n)))
                .epsilon(1e-3));
    }
  }
}

TEST_CASE("learned scales: inputs, evaluation, skipped steps, a scaled loss") {
  Learns run(R"("input": )" + per_tensor);
  Tensor x = randn({4, 6});
  run.pass(x);
  run.training.step();
  CHECK(run.entry("ratio") == 1);  // data have no gradient: the scale stays
  x.set_requires_grad(true);
  run.pass(x);
  run.training.step();
  const double ratio = run.entry("ratio");
  CHECK(std::abs(ratio - 1) == doctest::Approx(0.01));
  {
    const NoGrad no_grad;
    run.training.forward(run.model, x);
  }
  run.training.step();  // no gradient: nothing moves
  CHECK(run.entry("ratio") == ratio);
  run.pass(full({4, 6}, std::numeric_limits<double>::quiet_NaN()).set_requires_grad(true));
  run.training.step();
  CHECK(run.entry("ratio") == ratio);

  // Under a loss scale the scales move as without one.
  const auto moved = [&](const std::string& loss_scale) {
    manual_seed(1);
    nn::Sequential model(nn::Linear(6, 3));
    optim::Sgd sgd(model.parameters(), {.lr = 0.01});
    std::string text = rule("\"weight\": " + per_tensor);
    text.insert(text.rfind('}'), ", \"loss_scale\": " + loss_scale);
    amp::Training training(policy::read_text(text), model, sgd);
    manual_seed(5);
    for (int i = 0; i < 3; ++i) {
      training.zero_grad();
      const Tensor y = training.forward(model, randn({4, 6}));
      training.backward((y * y).sum());
      training.step();
    }
    for (const auto& [key, state] : training.state_dict())
      if (key.ends_with("exp_avg_sq")) return state.item();
    return 0.0;
  };
  CHECK(moved("1024") == doctest::Approx(moved("\"none\"")).epsilon(1e-5));
}

TEST_CASE("learned scales: states resume to the bit; others are refused, and change nothing") {
  const auto steps = [](Learns& run, int from, int to) {
    for (int i = from; i < to; ++i) {
      manual_seed(uint64_t(100 + i));
      run.pass(randn({5, 6}).set_requires_grad(true));
      run.training.step();
    }
  };
  const std::string both = "\"weight\": " + per_row + ", \"input\": " + per_tensor;
  Learns whole(both), first(both), second(both);
  steps(whole, 0, 6);
  steps(first, 0, 3);
  optim::NamedTensors state;
  for (const auto& [name, x] : first.training.state_dict()) state[name] = x.clone();
  second.training.load_state_dict(state);
  steps(second, 3, 6);
  const optim::NamedTensors expected = whole.training.state_dict(),
                            got = second.training.state_dict();
  REQUIRE(expected.size() == got.size());
  for (const auto& [name, x] : expected) {
    INFO(name);
    CHECK(x.to_vector<double>() == got.at(name).to_vector<double>());
  }
  std::string ratio;
  for (const auto& [name, x] : state)
    if (name.ends_with("/ratio")) ratio = name;
  REQUIRE_FALSE(ratio.empty());
  state[ratio] = -state[ratio];
  const double before = second.entry("ratio");
  CHECK_THROWS_AS(second.training.load_state_dict(state), UsageError);
  CHECK(second.entry("ratio") == before);
}

TEST_CASE("learned scales: what a file cannot ask for") {
  const auto refuses = [](const std::string& entries, const std::string& part) {
    INFO(entries);
    try {
      policy::read_text(rule(entries));
      FAIL("accepted");
    } catch (const FormatError& error) {
      CHECK(std::string(error.what()).find(part) != std::string::npos);
    }
  };
  refuses("\"grad_output\": " + per_tensor, "has no gradient that could teach it");
  refuses("\"weight.backward\": " + per_tensor, "has no gradient that could teach it");
  refuses("\"input\": " + per_row, "others in each step");
  refuses(R"("weight": {"format": "int4", "scale": {"per": "row", "learned": {}}})", "lsq");
  refuses(R"("weight": {"format": "int4", "rounding": "stochastic",
              "scale": {"per": "tensor", "learned": {"gradient": "lsq"}}})",
          "stochastic rounding");
  refuses(R"("weight": {"format": "int4", "scale": {"per": "tensor", "from": "history",
              "learned": {"gradient": "lsq"}}})",
          "learned");
  const amp::Policy file = policy::read_text(rule("\"weight\": " + per_row));
  CHECK(policy::hash(policy::read_text(policy::write(file))) == policy::hash(file));
  CHECK(described(file.rules.rules[0].roles.at(policy::Role::weight).quantizer) ==
        "int4, scaled per row by learned numbers");
}

}  // namespace
}  // namespace halftone::test::learned_scale_test
