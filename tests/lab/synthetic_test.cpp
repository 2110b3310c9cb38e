// Workloads of the laboratory: shapes, numbers of parameters and operations by hand; names, and
// refusals.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include <halftone/lab/workload.h>
#include <halftone/lab/workload_data.h>
#include <halftone/policy/policy_file.h>

#include "lab/runs.h"
#include "support.h"

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
