// Trials: errors of gradients and losses, bits and bytes, against plain computations.
#include <doctest/doctest.h>

#include <cmath>

#include <halftone/core/formats/number_format.h>
#include <halftone/lab/trial.h>

#include "lab/runs.h"
#include "support.h"

namespace halftone::test::trial_test {
namespace {

using lab::Measurement;
using lab::Trial;
using Rounds = float (*)(float);

constexpr int64_t inputs = 6, outputs = 3, rows = 8;

policy::PolicyFile with_rules(const std::string& rules, const char* base = "fp32") {
  policy::PolicyFile file = policy::named_or_read(base);
  file.rules.rules = rules_of(rules);
  return file;
}

float exact(float x) { return x; }
float e4m3(float x) { return round_to(formats::e4m3, x); }
float e8m4(float x) { return round_to(*number_format_named("e8m4"), x); }

/// Gradients of mean((x' W'^T + b - y)^2) by weight and bias, and the loss, in f64. `of_x` and
/// `of_w` map x and W to x' and W'.
struct Plain {
  std::vector<double> gradients{};
  double loss = 0;
};
Plain plain(const Trial& trial, const data::Batch& batch, Rounds of_x, Rounds of_w) {
  const auto x = batch.inputs.to_vector<float>(), y = batch.targets.to_vector<float>();
  const auto w = trial.weights().at("0.weight").to_vector<float>();
  const auto b = trial.weights().at("0.bias").to_vector<float>();
  Plain result{.gradients = std::vector<double>(std::size_t(inputs * outputs + outputs))};
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t o = 0; o < outputs; ++o) {
      double z = b[std::size_t(o)];
      for (int64_t i = 0; i < inputs; ++i)
        z += double(of_x(x[std::size_t(r * inputs + i)])) * of_w(w[std::size_t(o * inputs + i)]);
      const double error = z - y[std::size_t(r * outputs + o)];
      const double dz = 2 * error / double(rows * outputs);
      result.loss += error * error / double(rows * outputs);
      for (int64_t i = 0; i < inputs; ++i)
        result.gradients[std::size_t(o * inputs + i)] += dz * of_x(x[std::size_t(r * inputs + i)]);
      result.gradients[std::size_t(inputs * outputs + o)] += dz;
    }
  return result;
}

double norm(const std::vector<double>& x) {
  double sum = 0;
  for (const double v : x) sum += v * v;
  return std::sqrt(sum);
}

/// A layer of 6 to 3, on two batches of 8 rows.
struct OneLayer {
  static lab::Workload make() { return linear_workload({inputs, outputs}, 2 * rows, rows); }
  Trial trial{make, amp::Strategy::named("fp32"), {.batches = 2, .warm_up = 0}};

  /// Errors against f32, measured on the two batches together, by this file's sums.
  void check_errors(const Measurement& measured, Rounds of_x, Rounds of_w) const {
    std::vector<double> difference, all;
    double loss_difference = 0, losses = 0;
    const lab::Workload work = make();
    for (const data::Batch& batch : work.train()) {
      const Plain reference = plain(trial, batch, exact, exact);
      const Plain candidate = plain(trial, batch, of_x, of_w);
      for (std::size_t i = 0; i < reference.gradients.size(); ++i) {
        all.push_back(reference.gradients[i]);
        difference.push_back(candidate.gradients[i] - reference.gradients[i]);
      }
      loss_difference += std::abs(candidate.loss - reference.loss), losses += reference.loss;
    }
    CHECK(measured.error == doctest::Approx(norm(difference) / norm(all)).epsilon(1e-4));
    CHECK(measured.loss_error == doctest::Approx(loss_difference / losses).epsilon(1e-3));
  }
};

TEST_CASE("errors of gradients and losses are those of a plain computation") {
  OneLayer one;
  const Measurement weight = one.trial.measure(with_rules(weight_rule("w", "0", "e4m3")));
  one.check_errors(weight, exact, e4m3);
  CHECK(weight.added == weight.error);  // the base is the reference until another one is set
  const std::string input = R"({"match": {"op": "linear"}, "input": "e8m4"})";
  one.check_errors(one.trial.measure(with_rules(input)), e8m4, exact);
  one.check_errors(one.trial.measure(with_rules(input + ", " + weight_rule("w", "0", "e4m3"))),
                   e8m4, e4m3);
  one.check_errors(one.trial.measure(policy::named_or_read("fp32")), exact, exact);
}

TEST_CASE("what is added is against the base, in units of the reference's gradients") {
  OneLayer one;
  const policy::PolicyFile base = with_rules(weight_rule("w", "0", "e8m4"));
  const Measurement of_base = one.trial.set_base(base);
  CHECK(of_base.added == 0);
  CHECK(of_base.error > 0);
  CHECK(one.trial.measure(base).added == 0);
  // The distance from the base back to f32 is that from f32 to the base.
  const Measurement back = one.trial.measure(policy::named_or_read("fp32"));
  CHECK(back.error == 0);
  CHECK(back.added == doctest::Approx(of_base.error));
}

TEST_CASE("bits are the mean of a product's operands, weighted by products' sizes") {
  // 24 x 16 and 16 x 8 multiply-adds: three quarters and a quarter.
  Trial trial(
      [] {
        return linear_workload({24, 16, 8});
      },
      amp::Strategy::named("fp32"), {.batches = 1, .warm_up = 0});
  const auto bits = [&](const std::string& rules, const char* base = "fp32") {
    return trial.measure(with_rules(rules, base)).bits;
  };
  CHECK(bits("") == 32);
  CHECK(bits("", "amp-bf16") == 16);
  CHECK(bits(weight_rule("w", "0", "e4m3")) == doctest::Approx(0.75 * (32 + 8) / 2 + 0.25 * 32));
  CHECK(bits(weight_rule("w", "1", "e4m3")) == doctest::Approx(0.75 * 32 + 0.25 * (32 + 8) / 2));
  CHECK(bits(weight_rule("w", "*", "e2m1")) == doctest::Approx((32 + 4) / 2.0));
  // Scales of 8 bits for 32 numbers, and for 16 numbers.
  CHECK(bits(weight_rule("w", "*", "mxfp4")) == doctest::Approx((32 + 4.25) / 2));
  CHECK(bits(weight_rule("w", "*", "nvfp4")) == doctest::Approx((32 + 4.5) / 2));
  CHECK(bits(R"({"match": {"op": "linear"}, "input": "mxfp8", "weight": "mxfp6"})") ==
        doctest::Approx((8.25 + 6.25) / 2));
  CHECK(bits(R"({"match": {"op": "linear", "path": "0"}, "input": "e4m3", "weight": "e4m3"})",
             "amp-bf16") == doctest::Approx(0.75 * 8 + 0.25 * 16));
}

TEST_CASE("bytes count quantized tensors in their own formats, with the scales of blocks") {
  constexpr int64_t batch = 8, width = 32;
  Trial trial(
      [] {
        return linear_workload({width, 4}, batch, batch);
      },
      amp::Strategy::named("fp32"), {.batches = 1, .warm_up = 0});
  const auto bytes = [&](const char* quantizer) {
    return trial
        .measure(with_rules(R"({"match": {"op": "linear"}, "input": ")" + std::string(quantizer) +
                            "\"}"))
        .bytes;
  };
  const double numbers = batch * width, e4m3_bytes = bytes("e4m3");
  CHECK(bytes("e2m1") - e4m3_bytes == doctest::Approx(-numbers * 4 / 8));
  CHECK(bytes("mxfp8") - e4m3_bytes == doctest::Approx(numbers * 0.25 / 8));
  CHECK(bytes("mxfp4") - e4m3_bytes == doctest::Approx(-numbers * 3.75 / 8));
  CHECK(bytes("bf16") - e4m3_bytes == doctest::Approx(numbers));
}

TEST_CASE("measuring twice is the same twice, and leaves the weights alone") {
  OneLayer one;
  const NamedTensors before = one.trial.weights();
  const policy::PolicyFile policy = with_rules(
      R"({"match": {"op": "linear"}, "weight": {"format": "e4m3", "rounding": "stochastic"}})");
  const Measurement first = one.trial.measure(policy), second = one.trial.measure(policy);
  CHECK(first.error > 0);
  CHECK(first.error == second.error);
  CHECK(first.loss_error == second.loss_error);
  CHECK(first.bytes == second.bytes);
  CHECK(first.milliseconds > 0);
  CHECK(std::isfinite(first.milliseconds));
  for (const auto& [name, x] : before)
    CHECK(one.trial.weights().at(name).to_vector<float>() == x.to_vector<float>());
}

TEST_CASE("a warm-up trains: other weights, and the batches after it, round the data again") {
  const auto make = [] { return linear_workload({inputs, outputs}, 2 * rows, rows); };
  const auto weights = [&](int64_t warm_up) {
    const Trial trial(make, amp::Strategy::named("fp32"), {.batches = 1, .warm_up = warm_up});
    return trial.weights().at("0.weight").to_vector<float>();
  };
  CHECK(weights(0) == make().model->named_parameters().front().second.to_vector<float>());
  CHECK(weights(1) != weights(0));
  CHECK(weights(7) != weights(1));  // data of two batches, repeated
  CHECK(weights(7) == weights(7));
}

TEST_CASE("an infinite gradient is an infinite error, and a loss scale changes none") {
  OneLayer one;
  const Measurement plain = one.trial.measure(policy::named_or_read("amp-fp16"));
  policy::PolicyFile scaled = policy::named_or_read("amp-fp16");
  scaled.base.loss_scale.init_scale *= 2;
  CHECK(one.trial.measure(scaled).error == doctest::Approx(plain.error).epsilon(0.05));
  scaled.base.loss_scale.init_scale = 1e30;
  CHECK(std::isinf(one.trial.measure(scaled).error));
}

TEST_CASE("options that measure nothing are refused") {
  const auto refusal = [](lab::TrialOptions options) {
    return message_of<UsageError>(
        [&] { Trial(OneLayer::make, amp::Strategy::named("fp32"), options); });
  };
  CHECK(contains(refusal({.batches = -1}), "[trial] -1 batches"));
  CHECK(contains(refusal({.warm_up = -1}), "-1 steps"));
  CHECK(contains(refusal({.rounds = 0}), "0 rounds"));
}

TEST_CASE("a policy that trains other parameters cannot be compared") {
  bool freeze = false;
  const auto make = [&] {
    lab::Workload work = linear_workload({inputs, outputs}, 2 * rows, rows);
    if (freeze) work.model->named_parameters().front().second.set_requires_grad(false);
    return work;
  };
  const Trial trial(make, amp::Strategy::named("fp32"), {.batches = 1, .warm_up = 0});
  freeze = true;
  CHECK(contains(message_of<UsageError>([&] { trial.measure(policy::named_or_read("fp32")); }),
                 "the policy leaves 3 elements with gradients, the reference 21."));
}

}  // namespace
}  // namespace halftone::test::trial_test
