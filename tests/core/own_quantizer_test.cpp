// Quantizers that a program adds: blocks and random words by hand, files that use them, rotations
// and clips around them, surveys, and what is refused.
#include <doctest/doctest.h>

#include <cmath>

#include <halftone/autograd/ops.h>
#include <halftone/autograd/ops/cast.h>
#include <halftone/core/formats/quantizer.h>
#include <halftone/core/formats/survey.h>
#include <halftone/policy/policy_file.h>
#include <halftone/policy/quantizer_json.h>

#include "../support.h"
#include "policy/policy_cases.h"

namespace halftone::test::own_quantizer_test {
namespace {

using Numbers = std::vector<float>;

/// Rounds to multiples of the block's largest magnitude / 2; the result depends on the block.
void to_halves(std::span<const float> in, std::span<const uint32_t>, std::span<float> out) {
  float largest = 0;
  for (const float x : in) largest = std::max(largest, std::abs(x));
  const float unit = largest > 0 ? largest / 2 : 1;
  for (std::size_t i = 0; i < in.size(); ++i) out[i] = std::round(in[i] / unit) * unit;
}

/// Adds the lowest bit of each random word.
void with_words(std::span<const float> in, std::span<const uint32_t> random, std::span<float> out) {
  REQUIRE(random.size() == in.size());
  for (std::size_t i = 0; i < in.size(); ++i) out[i] = in[i] + float(random[i] & 1);
}

/// Adds the quantizers of this file to the process, once.
void add_all() {
  static const bool once = [] {
    policy::add_quantizer(
        {.name = "halves", .hash = "v1", .bits = 3, .columns = 4, .round = to_halves});
    policy::add_quantizer({.name = "words", .hash = "1", .draws = true, .round = with_words});
    return true;
  }();
  static_cast<void>(once);
}

Quantizer named(const char* name) {
  add_all();
  return Quantizer{.own = policy::own_quantizer_named(name)};
}

TEST_CASE("a function of the program gets blocks of columns, shorter at the end of a row") {
  const Tensor x = from_vector(Numbers{1, 4, 8, 2, 3, 1, -1, 0, 0, 0, 6, 2}, {2, 6});
  const Quantizer halves = named("halves");
  check_quantizer("test", halves);
  CHECK(quantized(x, {.quantizer = halves}).to_vector<float>() ==
        Numbers{0, 4, 8, 4, 3, 1.5, -1, 0, 0, 0, 6, 3});
  CHECK(halves.bits_per_element() == 3);
  CHECK(halves.exact_in(f32));
  CHECK_FALSE(halves.exact_in(bf16));
  CHECK_FALSE(halves.draws());
  CHECK(described(halves) == "halves (v1)");
}

TEST_CASE("random words belong to the element, whatever the blocks are") {
  const Quantizer words = named("words");
  CHECK(words.draws());
  const RandomKey key{5, 70};
  const Tensor y = quantized(zeros({3, 5}), {.quantizer = words, .key = key});
  const Numbers got = y.to_vector<float>();
  for (uint64_t i = 0; i < got.size(); ++i)
    CHECK(got[i] == float(Philox::words(key.seed, key.offset + i / 4)[i % 4] & 1));
}

TEST_CASE("a rotation and a clip are applied around the function") {
  manual_seed(3);
  const Tensor x = randn({4, 8});
  Quantizer turned = named("halves");
  turned.hadamard = 4;
  check_quantizer("test", turned);
  // The function sees rotated blocks: the identity would give x back.
  const Tensor y = quantized(x, {.quantizer = turned});
  CHECK(y.to_vector<float>() != quantized(x, {.quantizer = named("halves")}).to_vector<float>());
  Quantizer bounded = named("halves");
  bounded.clip.quantile = 0.5;
  const Numbers clipped = quantized(x, {.quantizer = bounded}).to_vector<float>();
  CHECK(std::ranges::max(clipped) < std::ranges::max(x.to_vector<float>()));
}

TEST_CASE("surveys count the error of the function") {
  const Tensor x = from_vector(Numbers{1, 4, 8, 2}, {1, 4});
  const Quantizer halves = named("halves");
  const Tensor row = new_survey_row(Device::cpu());
  quantized(x, {.quantizer = halves, .survey = row});
  const Survey survey = Survey::from(row);
  CHECK(survey.sums.count == 4);
  CHECK(survey.sums.sum_e2 == 1 + 4);  // 1 -> 0 and 2 -> 4
  CHECK(survey.sums.to_zero == 1);
}

constexpr const char* file = R"({
  "halftone_policy": 1, "name": "mine", "extends": "amp-bf16",
  "quantizers": {"turned": {"like": "halves", "hadamard": 4}},
  "rules": [{"match": {"op": "linear"}, "compute": "f32", "input": "turned", "weight": "halves",
             "grad_output": "words"}]})";

TEST_CASE("policy files use it by its name; hashes contain the author's hash") {
  add_all();
  const policy::PolicyFile read = policy::read_text(file, "test");
  const std::string written = policy::write(read);
  CHECK(contains(written, "\"like\": \"halves\""));
  const policy::PolicyFile again = policy::read_text(written, "test");
  CHECK(again.rules == read.rules);
  CHECK(policy::hash(again) == policy::hash(read));
  policy::add_quantizer({.name = "halved", .hash = "v1", .columns = 4, .round = to_halves});
  policy::add_quantizer({.name = "halvet", .hash = "v2", .columns = 4, .round = to_halves});
  const auto hash_with = [](const std::string& name) {
    return policy::hash(policy::read_text(
        R"({"halftone_policy": 1, "name": "m", "extends": "fp32", "rules": [{"weight": ")" + name +
            R"("}]})",
        "test"));
  };
  CHECK(hash_with("halved") != hash_with("halvet"));

  nn::Linear model(8, 8);
  optim::Sgd optimizer(model.parameters(), {.lr = 0.1});
  amp::Training training(policy::strategy_of(read), model, optimizer);
  manual_seed(1);
  const Tensor loss = training.forward([&] { return model(randn({4, 8})).pow(2).mean(); });
  training.backward(loss);
  CHECK(training.step());
  CHECK(std::isfinite(loss.item()));
}

TEST_CASE("what cannot be is refused") {
  add_all();
  const auto refused = [](OwnQuantizer own) {
    return message_of<UsageError>([&] { policy::add_quantizer(std::move(own)); });
  };
  CHECK(contains(refused({.name = "halves", .hash = "2", .round = to_halves}), "\"halves\""));
  CHECK(contains(refused({.name = "e4m3", .hash = "2", .round = to_halves}), "\"e4m3\""));
  CHECK(contains(refused({.name = "none", .hash = "2", .round = to_halves}), "Choose another"));
  CHECK(contains(refused({.name = "x", .hash = "", .round = to_halves}), "All three"));
  CHECK(contains(refused({.name = "x", .hash = "1"}), "no function"));
  CHECK(contains(refused({.name = "x", .hash = "1", .bits = 0, .round = to_halves}), "0 bits"));
  CHECK(contains(refused({.name = "x", .hash = "1", .columns = -1, .round = to_halves}), "-1"));
  Quantizer scaled = named("halves");
  scaled.scaling = Scaling::per_tensor();
  CHECK(contains(message_of<UsageError>([&] { check_quantizer("test", scaled); }),
                 "Leave those out"));
  CHECK(contains(message_of<FormatError>([&] {
                   policy::read_text(R"({"halftone_policy": 1, "name": "m", "extends": "fp32",
                     "rules": [{"weight": "halve"}]})",
                                     "test");
                 }),
                 "Did you mean \"halve"));
}

}  // namespace
}  // namespace halftone::test::own_quantizer_test
