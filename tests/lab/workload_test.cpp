// Workloads: each depends on its seed, also those that bench/train_step measures.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <set>

#include <doctest/doctest.h>

#include <halftone/halftone.h>
#include <halftone/lab/identity.h>
#include <halftone/lab/trial.h>
#include <halftone/lab/workload.h>
#include <halftone/lab/workload_data.h>

#include "lab/runs.h"
#include "support.h"

namespace halftone::test::workload_test {
namespace {

std::string weights_of(const std::string& workload, uint64_t seed) {
  return lab::hash_of(nn::state_dict(*lab::make_workload(workload, seed).model));
}
std::string data_of(const std::string& workload, uint64_t seed) {
  const data::Batch batch = lab::example_of(lab::make_workload(workload, seed));
  return lab::hash_of(optim::NamedTensors{{"inputs", batch.inputs}, {"targets", batch.targets}});
}

TEST_CASE("workloads: another seed is another model on other data, the same seed the same") {
  for (const char* name :
       {"student_teacher", "residual_mlp", "mlp_tiny", "resnet18_cifar", "gpt_char", "gpt_tiny",
        "llama_moe", "vit_tiny", "resnet8", "lstm_text", "diffusion"}) {
    CAPTURE(name);
    CHECK(weights_of(name, 1) == weights_of(name, 1));
    CHECK(weights_of(name, 1) != weights_of(name, 2));
    CHECK(data_of(name, 1) == data_of(name, 1));
    CHECK(data_of(name, 1) != data_of(name, 2));
  }
}

TEST_CASE("workloads: docs/cli.md names each") {
  const std::filesystem::path root = std::filesystem::path(fixtures_directory()).parent_path();
  const std::string page = read_file(root.parent_path() / "docs/cli.md");
  REQUIRE_FALSE(page.empty());
  for (const lab::NamedWorkload& workload : lab::built_in_workloads()) {
    CAPTURE(workload.name);
    CHECK(contains(page, "`" + workload.name + "`"));
  }
}

TEST_CASE("workloads: seeds order the data of workloads on real data, and leave validation alone") {
  const auto first = [](data::DataLoader loader) {
    return lab::hash_of(optim::NamedTensors{{"x", (*loader.begin()).inputs}});
  };
  for (const char* name : {"gpt_tiny", "resnet8", "lstm_text", "diffusion"}) {
    CAPTURE(name);
    const lab::Workload one = lab::make_workload(name, 1), other = lab::make_workload(name, 2);
    CHECK(first(one.train()) != first(other.train()));
    CHECK(first(one.validation()) == first(other.validation()));
    CHECK_FALSE(lab::trains_on_noise(name));
  }
  CHECK(lab::trains_on_noise("mlp_tiny"));
  CHECK_FALSE(lab::trains_on_noise("no such workload"));
}

TEST_CASE("workloads: what is measured has seed 0 where none is given") {
  const auto hash = [](const lab::SyntheticWorkload& w) {
    return lab::hash_of(nn::state_dict(*w.model));
  };
  CHECK(hash(lab::make_synthetic("mlp_tiny")) == hash(lab::make_synthetic("mlp_tiny", {}, 0)));
  for (const char* name : {"mlp_tiny", "mlp_100", "lstm_100"})
    CHECK(hash(lab::make_synthetic(name)) != hash(lab::make_synthetic(name, {}, 3)));
}

TEST_CASE("workloads: first losses of two seeds differ") {
  std::vector<double> losses;
  for (const uint64_t seed : {1, 2}) {
    const lab::Workload work = lab::make_workload("mlp_tiny", seed);
    const auto optimizer = lab::optimizer_of(work);
    amp::Training training = lab::training_of(amp::Policy::named("fp32"), work, *optimizer);
    lab::train_steps(work, training, 1,
                     [&](int64_t, const Tensor& loss) { losses.push_back(loss.item()); });
  }
  CHECK(losses.at(0) != losses.at(1));
}

}  // namespace
}  // namespace halftone::test::workload_test

// Workloads of the laboratory: shapes, numbers of parameters and operations by hand; names, and
// refusals.

namespace halftone::test::synthetic_test {
namespace {

using lab::SyntheticWorkload;
using lab::Workload;

int64_t parameters_of(const nn::Module& model) {
  int64_t count = 0;
  for (const Tensor& parameter : model.parameters()) count += parameter.numel();
  return count;
}

int64_t linear(int64_t in, int64_t out) { return in * out + out; }
int64_t conv(int64_t in, int64_t out, int64_t kernel) { return in * out * kernel * kernel; }

/// A GPT whose head shares the embedding's weights: embeddings, and per layer two norms, four
/// matrices of width x width for attention, and two of width x 4 width.
int64_t gpt(int64_t vocabulary, int64_t context, int64_t layers, int64_t width) {
  const int64_t layer = 4 * width + linear(width, 3 * width) + linear(width, width) +
                        linear(width, 4 * width) + linear(4 * width, width);
  return (vocabulary + context) * width + layers * layer + 2 * width;
}
/// Without biases; keys: the width of keys and of values.
int64_t llama(int64_t vocabulary, int64_t layers, int64_t width, int64_t keys, int64_t hidden) {
  const int64_t layer = 2 * width + 2 * width * width + 2 * width * keys + 3 * width * hidden;
  return 2 * vocabulary * width + layers * layer + width;
}

TEST_CASE(
    "operations of a step: forward and both products of backward, the first layer's but one") {
  CHECK(lab::gflop_of_step(1, {5e8}) == doctest::Approx(2));  // 2 passes of 2 operations
  CHECK(lab::gflop_of_step(1, {0, 5e8}) == doctest::Approx(3));
  CHECK(lab::gflop_of_step(10, {1e8, 1e8, 2e8}) == doctest::Approx((2 + 3 + 6) * 2.0));
  CHECK(lab::gflop_of_step(3, {}) == 0);
}

TEST_CASE("synthetic models have as many parameters as their layers say") {
  const std::pair<const char*, int64_t> counts[] = {
      {"mlp_tiny", linear(784, 128) + linear(128, 10)},
      {"mlp", linear(784, 2048) + linear(2048, 2048) + linear(2048, 10)},
      {"lenet", conv(1, 32, 3) + 32 + conv(32, 64, 3) + 64 + linear(3136, 128) + linear(128, 10)},
      {"gpt_tiny", gpt(65, 64, 4, 128)},
      {"llama_tiny", llama(85, 4, 128, 64, 512)},
      {"llama_124m", llama(32000, 12, 768, 256, 2048)},
      {"vit_tiny", conv(1, 64, 4) + 64 + 51 * 64 + 2 * 64 + linear(64, 10) +
                       4 * (4 * 64 + linear(64, 3 * 64) + linear(64, 64) + linear(64, 4 * 64) +
                            linear(4 * 64, 64))},
      {"mlp_100", linear(784, 1000) + linear(1000, 333) + linear(333, 10)},
      {"mlp_1", linear(784, 1000) + linear(1000, 333) + linear(333, 10)},
      {"conv_48", conv(3, 48, 3) + 96 + conv(48, 96, 3) + 192 + conv(96, 96, 5) + 192 +
                      conv(96, 333, 1) + 333 + linear(333, 10)},
      {"gpt_48", gpt(333, 100, 2, 240)}};
  for (const auto& [name, count] : counts) {
    CAPTURE(name);
    CHECK(parameters_of(*lab::make_synthetic(name).model) == count);
  }
  // A block of ResNet-18 has two convolutions with batch norm; three stages begin with a 1 x 1
  // convolution.
  const auto stage = [](int64_t in, int64_t out) {
    return conv(in, out, 3) + 3 * conv(out, out, 3) + 8 * out +
           (in == out ? 0 : conv(in, out, 1) + 2 * out);
  };
  CHECK(parameters_of(*lab::make_synthetic("resnet18_cifar").model) ==
        conv(3, 64, 3) + 128 + stage(64, 64) + stage(64, 128) + stage(128, 256) + stage(256, 512) +
            linear(512, 10));
}

TEST_CASE("synthetic batches: shapes, classes within their range, and outputs to match") {
  struct Wanted {
    const char* name;
    Shape inputs, targets;
    int64_t classes;
  };
  const Wanted all[] = {{"mlp_tiny", {64, 784}, {64}, 10},
                        {"lenet", {128, 1, 28, 28}, {128}, 10},
                        {"gpt_tiny", {16, 64}, {16, 64}, 65},
                        {"llama_tiny", {16, 64}, {16, 64}, 85},
                        {"vit_tiny", {128, 1, 28, 28}, {128}, 10},
                        {"mlp_1", {1, 784}, {1}, 10},
                        {"mlp_100", {100, 784}, {100}, 10},
                        {"conv_48", {10, 3, 45, 37}, {10}, 10},
                        {"depthwise_7x7", {10, 3, 45, 37}, {10}, 10},
                        {"gpt_48", {3, 100}, {3, 100}, 333},
                        {"lstm_100", {10, 25}, {10}, 10}};
  for (const Wanted& wanted : all) {
    CAPTURE(wanted.name);
    const SyntheticWorkload w = lab::make_synthetic(wanted.name);
    CHECK(w.name == wanted.name);
    CHECK(w.inputs.shape() == wanted.inputs);
    CHECK(w.targets.shape() == wanted.targets);
    CHECK(w.targets.dtype() == i64);
    const auto targets = w.targets.to_vector<int64_t>();
    CHECK(std::ranges::min(targets) >= 0);
    CHECK(std::ranges::max(targets) < wanted.classes);
    CHECK(w.gflop > 0);
  }
}

TEST_CASE("operations of perceptrons and GPTs by hand") {
  const auto gflop = [](const char* name) { return lab::make_synthetic(name).gflop; };
  CHECK(gflop("mlp_tiny") == doctest::Approx(2e-9 * 64 * (2 * 784 * 128 + 3 * 128 * 10)));
  CHECK(gflop("mlp_1") == doctest::Approx(2e-9 * (2 * 784 * 1000 + 3 * 1000 * 333 + 3 * 333 * 10)));
  CHECK(gflop("mlp_100") == doctest::Approx(100 * gflop("mlp_1")));
  // Per token and layer 12 width^2, attention's two products with half of the length each, the
  // head.
  CHECK(gflop("gpt_tiny") ==
        doctest::Approx(6e-9 * 16 * 64 * (4.0 * (12 * 128 * 128 + 2 * 128 * 32) + 65 * 128)));
  // Queries and results of width 128, keys and values of width 64, three matrices of 128 x 512.
  CHECK(gflop("llama_tiny") ==
        doctest::Approx(
            6e-9 * 16 * 64 *
            (4.0 * (2 * 128 * 128 + 2 * 128 * 64 + 3 * 128 * 512 + 2 * 128 * 32) + 85 * 128)));
}

TEST_CASE("the loss of logits is the mean cross-entropy, of sequences over all their places") {
  const Tensor logits = from_vector<float>({0, 0, std::log(3.0f), 0}, {2, 2});
  const Tensor targets = from_vector<int64_t>({1, 0}, {2});
  // -log(1 / 2) and -log(3 / 4)
  CHECK(lab::logits_loss(logits, targets).item() ==
        doctest::Approx((std::log(2.0) + std::log(4.0 / 3)) / 2));
  CHECK(lab::logits_loss(reshape(logits, Shape{1, 2, 2}), reshape(targets, Shape{1, 2})).item() ==
        doctest::Approx((std::log(2.0) + std::log(4.0 / 3)) / 2));
}

TEST_CASE("names: no two alike, all in the list, unknown ones refused") {
  const auto names = lab::synthetic_names(), untuned = lab::untuned_names();
  std::set<std::string> all(names.begin(), names.end());
  all.insert(untuned.begin(), untuned.end());
  CHECK(all.size() == names.size() + untuned.size());
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  CHECK(lab::synthetic_list() == list);
  CHECK_FALSE(lab::make_untuned("mlp_tiny"));
  CHECK(contains(message_of<UsageError>([] { lab::make_synthetic("mlp_2"); }),
                 "there is no workload named \"mlp_2\""));
}

// --- workloads of commands

TEST_CASE("workloads: names, descriptions, and models that policies may be for") {
  std::set<std::string> names;
  const auto models = policy::model_names();
  for (const lab::NamedWorkload& workload : lab::built_in_workloads()) {
    CAPTURE(workload.name);
    CHECK(names.insert(workload.name).second);
    CHECK_FALSE(workload.about.empty());
    if (!workload.model.empty()) CHECK(std::ranges::find(models, workload.model) != models.end());
    CHECK(lab::model_of(workload.name) == workload.model);
  }
  for (const std::string& name : lab::synthetic_names()) CHECK(names.contains(name));
  CHECK(lab::model_of("student_teacher") == "mlp");
  CHECK(lab::model_of("resnet18_224") == "resnet");
  CHECK(lab::model_of("gpt2_124m") == "gpt");
  CHECK(lab::model_of("llama_124m") == "llama");
  CHECK(lab::model_of("absent").empty());
}

TEST_CASE("a workload of one's own comes before one of the library of the same name") {
  const std::vector<lab::NamedWorkload> own{{"mlp_tiny", "",
                                             [](uint64_t) {
                                               return linear_workload({3, 2});
                                             },
                                             "lenet"},
                                            {"mine",
                                             "",
                                             [](uint64_t seed) {
                                               return linear_workload({int64_t(seed), 2});
                                             },
                                             {}}};
  CHECK(parameters_of(*lab::make_workload("mlp_tiny", 0, own).model) == 8);
  CHECK(parameters_of(*lab::make_workload("mine", 5, own).model) == 12);
  CHECK(lab::model_of("mlp_tiny", own) == "lenet");
  CHECK(lab::model_of("mine", own).empty());
  CHECK(contains(message_of<UsageError>([&] { lab::make_workload("mime", 0, own); }),
                 "no workload named \"mime\". Did you mean \"mine\""));
}

TEST_CASE("workloads without a function, a model or data are refused by name") {
  const auto refusal = [](std::function<Workload(uint64_t)> make) {
    const std::vector<lab::NamedWorkload> own{{"mine", "", std::move(make), {}}};
    return message_of<UsageError>([&] { lab::make_workload("mine", 0, own); });
  };
  CHECK(contains(refusal({}), "[workload] mine has no function `make`"));
  CHECK(contains(refusal([](uint64_t) {
                   Workload work = linear_workload({3, 2});
                   work.train = {};
                   return work;
                 }),
                 "mine has no training data"));
}

TEST_CASE("the example is the workload's own, or its first batch") {
  Workload work = linear_workload({3, 2}, 8, 4);
  const data::Batch first = lab::example_of(work);
  CHECK(first.inputs.shape() == Shape{4, 3});
  CHECK(first.targets.shape() == Shape{4, 2});
  work.example = data::Batch{zeros({1, 3}), zeros({1, 2})};
  CHECK(lab::example_of(work).inputs.shape() == Shape{1, 3});
}

TEST_CASE("teachers and students: shapes of data, and targets that the student can learn") {
  for (const auto& [name, in, out, parameters] :
       {std::tuple("student_teacher", 32, 8, linear(32, 128) + linear(128, 8)),
        std::tuple("residual_mlp", 64, 16,
                   linear(64, 64) + 4 * (128 + linear(64, 128) + linear(128, 64)) + 128 +
                       linear(64, 16))}) {
    CAPTURE(name);
    const Workload work = lab::make_workload(name);
    CHECK(parameters_of(*work.model) == parameters);
    const data::Batch example = lab::example_of(work);
    CHECK(example.inputs.shape() == Shape{64, in});
    CHECK(example.targets.shape() == Shape{64, out});
    CHECK(work.train().size() == 4096 / 64);
    CHECK(work.validation().size() == 1024 / 256);
  }
}

TEST_CASE("without an optimizer of its own a workload has AdamW at its rate") {
  Workload work = linear_workload({3, 2});
  work.lr = 0.125;
  CHECK(lab::optimizer_of(work)->lr() == 0.125);
  const Workload gpt = lab::make_workload("gpt_tiny");
  CHECK(gpt.clip_norm == 1);
  CHECK(lab::optimizer_of(gpt)->lr() == gpt.lr);
  // Rates rise for a twentieth of the steps plus one, and fall to a twentieth of the largest.
  const optim::LrSchedule rates = gpt.schedule(100);
  CHECK(rates.at(0) < rates.at(5));
  CHECK(rates.at(6) == doctest::Approx(1));
  CHECK(rates.at(50) < 1);
  CHECK(rates.at(100) == doctest::Approx(0.05));
}

}  // namespace
}  // namespace halftone::test::synthetic_test

// Trials: errors of gradients and losses, bits and bytes, against plain computations.

namespace halftone::test::trial_test {
namespace {

using lab::Measurement;
using lab::Trial;
using Rounds = float (*)(float);

constexpr int64_t inputs = 6, outputs = 3, rows = 8;

amp::Policy with_rules(const std::string& rules, const char* base = "fp32") {
  amp::Policy file = policy::named_or_read(base);
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
  Trial trial{make, amp::Policy::named("fp32"), {.batches = 2, .warm_up = 0}};

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
  const amp::Policy base = with_rules(weight_rule("w", "0", "e8m4"));
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
      amp::Policy::named("fp32"), {.batches = 1, .warm_up = 0});
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
      amp::Policy::named("fp32"), {.batches = 1, .warm_up = 0});
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
  const amp::Policy policy = with_rules(
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
    const Trial trial(make, amp::Policy::named("fp32"), {.batches = 1, .warm_up = warm_up});
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
  amp::Policy scaled = policy::named_or_read("amp-fp16");
  scaled.loss_scale.init_scale *= 2;
  CHECK(one.trial.measure(scaled).error == doctest::Approx(plain.error).epsilon(0.05));
  scaled.loss_scale.init_scale = 1e30;
  CHECK(std::isinf(one.trial.measure(scaled).error));
}

TEST_CASE("options that measure nothing are refused") {
  const auto refusal = [](lab::TrialOptions options) {
    return message_of<UsageError>(
        [&] { Trial(OneLayer::make, amp::Policy::named("fp32"), options); });
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
  const Trial trial(make, amp::Policy::named("fp32"), {.batches = 1, .warm_up = 0});
  freeze = true;
  CHECK(contains(message_of<UsageError>([&] { trial.measure(policy::named_or_read("fp32")); }),
                 "the policy leaves 3 elements with gradients, the reference 21."));
}

}  // namespace
}  // namespace halftone::test::trial_test

// Traces: equal runs have equal ones, a change of one unit in the last place is named by its place,
// and files that other programs wrote or broke are refused.

namespace halftone::test::trace_test {
namespace {

using lab::TraceRow;
using policy::Role;

constexpr int layers = 20;

nn::Sequential network() {
  nn::Sequential model;
  for (int i = 0; i < layers; ++i) model.add(nn::Linear(8, 8)), model.add(nn::Tanh());
  return model;
}

float next_up(float x) { return std::bit_cast<float>(std::bit_cast<uint32_t>(x) + 1); }

/// The trace of two steps; `change` may write to the model or to the loss's gradient first.
std::vector<TraceRow> trace_of(const std::function<void(nn::Sequential&)>& change,
                               float loss_factor = 1) {
  manual_seed(3);
  nn::Sequential model = network();
  const Tensor x = randn({4, 8});
  optim::Sgd optimizer(model.parameters(), {.lr = 0.1});
  amp::Training training =
      amp::apply(policy::watched(amp::Policy::named("fp32")), model, optimizer);
  change(model);
  const auto tracer = std::make_shared<lab::Tracer>(1);
  const policy::Observation observation("test", training, tracer);
  for (int step = 0; step < 2; ++step) {
    training.zero_grad();
    const Tensor y = training.forward([&](const Tensor& in) { return model(in); }, x);
    const Tensor loss = sum(y) * double(step == 0 ? 1.0f : loss_factor);
    training.backward(loss);
    training.step();
  }
  return tracer->rows();
}

TEST_CASE("equal runs have equal traces, and rows say what they are of") {
  const auto rows = trace_of([](nn::Sequential&) {}), again = trace_of([](nn::Sequential&) {});
  CHECK_FALSE(lab::first_difference(rows, again));
  REQUIRE(rows.size() > 100);
  CHECK(rows.front().site == "0/linear.0");
  CHECK(rows.front().dtype == "f32");
  CHECK(rows.front().shape == Shape{4, 8});
  CHECK(rows.front().hash.size() == 16);
}

TEST_CASE("one unit in the last place of a weight is named at its layer, in each of 20 layers") {
  const auto rows = trace_of([](nn::Sequential&) {});
  for (int layer = 0; layer < layers; ++layer) {
    CAPTURE(layer);
    const auto changed = trace_of([&](nn::Sequential& model) {
      Tensor weight = model.parameters()[std::size_t(2 * layer)];
      float& value = weight.data<float>()[17];
      value = next_up(value);
    });
    const auto difference = lab::first_difference(rows, changed);
    REQUIRE(difference);
    REQUIRE(difference->here);
    CHECK(difference->here->step == 0);
    CHECK(difference->here->site == std::to_string(2 * layer) + "/linear.0");
    CHECK(difference->here->role == Role::weight);
  }
}

/// Hands its input on. In `forward` or `backward` the first number becomes one unit in the last
/// place larger.
struct Nudge : UserOp {
  static constexpr OpInfo info{"nudge", CastClass::as_is};
  bool in_forward, in_backward;
  Needs<1> needs{};
  Nudge(bool forward_too, bool backward_too) : in_forward(forward_too), in_backward(backward_too) {}

  static Tensor nudged(const Tensor& x, bool change) {
    Tensor y = x.clone();
    if (change) y.data<float>()[0] = next_up(y.data<float>()[0]);
    return y;
  }
  Tensor forward(const Tensor& x) const { return nudged(x, in_forward); }
  std::array<Tensor, 1> backward(const Tensor& dy) const { return {nudged(dy, in_backward)}; }
};

struct NudgeLayer final : nn::Layer {
  bool in_forward, in_backward;
  NudgeLayer(bool forward_too, bool backward_too)
      : in_forward(forward_too), in_backward(backward_too) {}
  Tensor forward(const Tensor& x) const override {
    return apply(Nudge(in_forward, in_backward), x);
  }
  void describe(nn::Fields&) override {}
};

/// The trace of one step of linear layers, each followed by a Nudge; that of layer `at` changes a
/// result or a gradient.
std::vector<TraceRow> nudged_trace(int at, bool in_backward) {
  manual_seed(4);
  nn::Sequential model;
  for (int i = 0; i < layers; ++i) {
    model.add(nn::Linear(8, 8));
    model.add(NudgeLayer(i == at && !in_backward, i == at && in_backward));
  }
  const Tensor x = randn({4, 8});
  optim::Sgd optimizer(model.parameters(), {.lr = 0.1});
  amp::Training training =
      amp::apply(policy::watched(amp::Policy::named("fp32")), model, optimizer);
  const auto tracer = std::make_shared<lab::Tracer>(1);
  const policy::Observation observation("test", training, tracer);
  training.backward(sum(training.forward([&](const Tensor& in) { return model(in); }, x)));
  training.step();
  return tracer->rows();
}

TEST_CASE("one unit in the last place is named at each of 20 results and 20 gradients") {
  const auto rows = nudged_trace(-1, false);
  for (const bool in_backward : {false, true})
    for (int layer = 0; layer < layers; ++layer) {
      CAPTURE(layer);
      const auto difference = lab::first_difference(rows, nudged_trace(layer, in_backward));
      REQUIRE(difference);
      REQUIRE(difference->here);
      CHECK(difference->here->site == std::to_string(2 * layer + 1) + "/nudge.0");
      CHECK(difference->here->role == (in_backward ? Role::grad_input : Role::output));
    }
}

TEST_CASE("one unit in the last place of a gradient is named in backward of its step") {
  const auto rows = trace_of([](nn::Sequential&) {}, 1),
             changed = trace_of([](nn::Sequential&) {}, next_up(1));
  const auto difference = lab::first_difference(rows, changed);
  REQUIRE(difference);
  REQUIRE(difference->here);
  CHECK(difference->here->step == 1);
}

TEST_CASE("files: what was written is read, and a broken line is refused") {
  const TemporaryDirectory directory;
  lab::Tracer tracer(1);
  CHECK(tracer.begin_pass(0));
  const std::string site = "a\"b";
  const policy::Seen seen{
      .site = site, .op = "linear", .role = Role::output, .input = 0, .quantizer = nullptr};
  const Tensor x = from({1, 2, 2}, bf16), bad = from({1, INFINITY}, f32);
  tracer.tensor(seen, x, x);
  tracer.tensor(seen, bad, bad);
  write_file(directory / "trace.jsonl", tracer.lines());
  const auto rows = lab::read_trace("diff", directory / "trace.jsonl");
  CHECK_FALSE(lab::first_difference(rows, tracer.rows()));
  CHECK(rows.at(0).root_mean_square == std::sqrt(3.0));
  CHECK(std::isnan(rows.at(1).root_mean_square));
  for (const char* line :
       {"{}", R"({"step":1,"input":0,"role":"none","hash":"0123456789abcdef","shape":[]})",
        R"({"step":1,"input":0,"role":"output","hash":"0123456789abcdeg","shape":[]})",
        R"({"step":1,"input":0,"role":"output","hash":"0123456789abcdef","shape":[-1]})"}) {
    CAPTURE(line);
    write_file(directory / "trace.jsonl", tracer.lines() + line + "\n");
    CHECK(contains(
        message_of<FormatError>([&] { lab::read_trace("diff", directory / "trace.jsonl"); }),
        "1 lines are not rows of a trace"));
  }
}

TEST_CASE("words of a difference") {
  TraceRow row{.step = 3,
               .site = "fc/linear.0",
               .role = Role::output,
               .dtype = "bf16",
               .shape = Shape{2, 3},
               .hash = "0123456789abcdef",
               .root_mean_square = 0.5};
  TraceRow other = row;
  other.hash = "0123456789abcdee", other.root_mean_square = 0.75;
  const auto text = [](const std::vector<TraceRow>& a, const std::vector<TraceRow>& b) {
    return lab::text_of(*lab::first_difference(a, b));
  };
  CHECK(
      text({row}, {other}) ==
      "step 3, fc/linear.0, output [2, 3] bf16: other bits; root mean squares 0.5 and 0.75 differ "
      "by 0.33");
  CHECK(text({row, row}, {row}) ==
        "the second ends before step 3, fc/linear.0, output [2, 3] bf16");
  other.site = "head/linear.0";
  CHECK(contains(text({row}, {other}), "other tensors: step 3, fc/linear.0"));
}

}  // namespace
}  // namespace halftone::test::trace_test
