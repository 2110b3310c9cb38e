// Quantizers as data: names, words, bytes, dtypes of their results, and the arithmetic of scales at
// its limits. Their effect on tensors: tests/backends/quantize_test.cpp.
#include <cmath>
#include <limits>

#include <doctest/doctest.h>

#include <halftone/core/formats/block_scale.h>
#include <halftone/halftone.h>
#include <halftone/amp/policy_reader.h>

#include "../support.h"
#include "quantizer_cases.h"
#include "policy/policy_cases.h"

namespace halftone::test::quantizer_test {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float largest = std::numeric_limits<float>::max();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

Quantizer named(std::string_view name) {
  const auto quantizer = quantizer_named(name);
  REQUIRE(quantizer.has_value());
  return *quantizer;
}

TEST_CASE("quantizers: names, words and bits") {
  for (const std::string_view name : ready_made_quantizers()) {
    CHECK(quantizer_named(name).has_value());
    CHECK_NOTHROW(check_quantizer("test", named(name)));
  }
  CHECK(named("e4m3") == Quantizer{.grid = formats::e4m3});
  CHECK(named("e5m6").grid.significand_bits == 7);
  CHECK(quantizer_named("mxfp5") == std::nullopt);
  CHECK(described(named("e4m3")) == "e4m3");
  CHECK(described(named("mxfp6")) == "e2m3, blocks of 1x32 with e8m0 scales (floor)");
  CHECK(described(named("nvfp4")) ==
        "e2m1, blocks of 1x16 with e4m3 scales under one of the tensor");
  CHECK(described(named("fp8_tensor")) == "e4m3, scaled per tensor");
  Quantizer delayed{.grid = formats::e5m2,
                    .rounding = Rounding::stochastic,
                    .random = {.bits = 8},
                    .scaling = Scaling::delayed(16),
                    .hadamard = 16};
  delayed.scaling.margin = 2, delayed.scaling.power_of_two = true;
  CHECK(described(delayed) ==
        "e5m2, scaled per tensor from the largest of 16 steps, powers of two, margin 2, rotated by "
        "16, "
        "stochastic (8 bits)");
  delayed.scaling.latest = true;
  CHECK(described(delayed).find("from the last of 16 steps") != std::string::npos);

  Quantizer chosen = named("nvfp4");
  chosen.scaling.targets = {6, 4}, chosen.scaling.scale_max = 256;
  chosen.hadamard = 16, chosen.draws_signs = true;
  CHECK(
      described(chosen) ==
      "e2m1, blocks of 1x16 with e4m3 scales under one of the tensor (up to 256), largest at 6 or "
      "4 (mse), rotated by 16 with new signs");
  Quantizer eden = named("nvfp4");
  eden.scaling.scale_format = NumberFormat::unsigned_float(5, 3);
  eden.scaling.scale_rounding = Rounding::stochastic, eden.scaling.corrected = true;
  CHECK(described(eden) ==
        "e2m1, blocks of 1x16 with ue5m3 scales rounded stochastically and corrected under one of "
        "the tensor");
  CHECK(described(Quantizer::of_table({1, -1, 0.5f})) == "a table of 3 numbers");
  CHECK(Quantizer::of_table({1, -1, 0.5f}).bits_per_element() == 2);
  CHECK(named("nvfp4").draws() == false);
  CHECK(eden.draws());
  CHECK(chosen.draws());

  CHECK(named("e4m3").bits_per_element() == 8);
  CHECK(named("fp8_tensor").bits_per_element() == 8);
  CHECK(named("mxfp4").bits_per_element() == 4.25);
  CHECK(named("nvfp4").bits_per_element() == 4.5);
  CHECK(named("fp8_block").bits_per_element() == 8.25);
  for (int rule = 0; rule < 4; ++rule)
    CHECK(halftone::named<ScaleRule>(name(ScaleRule(rule))) == ScaleRule(rule));
  CHECK(halftone::named<ScaleRule>("round") == std::nullopt);
}

TEST_CASE("formats without a sign: all codes but the highest are numbers") {
  const NumberFormat ue5m3 = *number_format_named("ue5m3"), ue4m3 = *number_format_named("ue4m3");
  CHECK(ue5m3.max == 114688);
  CHECK(ue5m3.bits == 8);
  CHECK(count_of_numbers(ue5m3) == 255);
  CHECK(number_at(ue5m3, 1) == 0x1p-17);
  CHECK(ue4m3.max == 448);
  CHECK(ue4m3.bits == 7);
  CHECK(number_format_named("ue8m0") == formats::e8m0);
  CHECK(count_of_numbers(*number_format_named("ue4m0")) == 15);
  CHECK(number_format_named("ue4m0")->max == 128);
  CHECK(count_of_numbers(*number_format_named("ue2m1")) == 7);
  CHECK(number_format_named("ue8m1") == std::nullopt);
  CHECK(number_format_named("ue5m9") == std::nullopt);
  for (const char* name : {"ue5m3", "ue4m3", "ue7m8", "ue2m0"})
    CHECK(described(*number_format_named(name)) == name);
}

TEST_CASE("quantizers: dtypes that hold the results") {
  for (const char* name : {"e4m3", "bf16", "tf32", "mxfp8", "nvfp4", "fp8_tensor", "fp8_block"})
    CHECK(named(name).exact_in(f32));
  for (const char* name : {"e4m3", "e5m2", "bf16", "mxfp8", "mxfp4", "mxint8"})
    CHECK(named(name).exact_in(bf16));
  for (const char* name : {"tf32", "f16", "nvfp4", "fp8_tensor", "fp8_block"})
    CHECK_FALSE(named(name).exact_in(bf16));
  for (const char* name : {"e4m3", "e5m2", "f16", "int8"}) CHECK(named(name).exact_in(f16));
  for (const char* name : {"bf16", "tf32", "mxfp8"}) CHECK_FALSE(named(name).exact_in(f16));
  Quantizer powers = named("fp8_tensor");
  powers.scaling.power_of_two = true;
  CHECK(powers.exact_in(bf16));
  powers.hadamard = 16;
  CHECK_FALSE(powers.exact_in(bf16));
  CHECK(powers.exact_in(f32));
  CHECK_FALSE(named("e4m3").exact_in(i32));
}

TEST_CASE("quantizers: the scale of a tensor") {
  Quantizer quantizer = named("fp8_tensor");
  QuantizeNumbers n = numbers_of(quantizer);
  CHECK(scale_of_tensor(n, 2) == 224);
  CHECK(scale_of_tensor(n, 3) == 448.0f / 3);
  CHECK(scale_of_tensor(n, 0) == 1);
  CHECK(scale_of_tensor(n, infinity) == 1);
  CHECK(scale_of_tensor(n, nan) == 1);
  CHECK(scale_of_tensor(n, 0x1p-149f) == largest);
  CHECK(scale_of_tensor(n, largest) == 448 / largest);
  quantizer.scaling.power_of_two = true;
  CHECK(scale_of_tensor(numbers_of(quantizer), 3) == 128);
  quantizer.scaling.margin = 3;
  CHECK(scale_of_tensor(numbers_of(quantizer), 3) == 16);
  quantizer.scaling.least = 7;
  CHECK(scale_of_tensor(numbers_of(quantizer), 3) == 8);
  CHECK(scale_of_tensor(numbers_of(quantizer), 0) == 8);
  quantizer.scaling.margin = 100, quantizer.scaling.least = 0;
  CHECK(scale_of_tensor(numbers_of(quantizer), largest) == 0x1p-126f);  // 1 / s stays finite
}

TEST_CASE("quantizers: the scales of blocks at the ends of their range") {
  QuantizeNumbers n = numbers_of(named("mxfp8"));
  const auto exponent = [&](ScaleRule rule, float amax) {
    n.rule = rule;
    return scale_exponent(n, amax);
  };
  for (const ScaleRule rule :
       {ScaleRule::floor, ScaleRule::ceil, ScaleRule::rceil, ScaleRule::even}) {
    CHECK(exponent(rule, 0) == -127);
    CHECK(exponent(rule, 0x1p-149f) == -127);
    CHECK(exponent(rule, 448) == (rule == ScaleRule::ceil ? 1 : 0));
    CHECK(exponent(rule, 256) == 0);
  }
  CHECK(exponent(ScaleRule::floor, 511) == 0);  // which saturates
  CHECK(exponent(ScaleRule::ceil, 257) == 1);
  CHECK(exponent(ScaleRule::rceil, 449) == 1);
  CHECK(exponent(ScaleRule::even, 495) == 0);
  CHECK(exponent(ScaleRule::even, 496) == 1);  // 496 rounds to 512 with four bits
  CHECK(exponent(ScaleRule::floor, largest) == 119);
  CHECK(exponent(ScaleRule::rceil, largest) == 120);
  CHECK(exponent(ScaleRule::rceil, 448 * 0x1p-126f) == -126);
  CHECK(exponent(ScaleRule::rceil, 448 * 0x1p-127f) == -127);
  CHECK(exponent(ScaleRule::rceil, 449 * 0x1p-127f) == -126);
  CHECK(power_of_two(-127) == 0x1p-127f);
  CHECK(power_of_two(127) == 0x1p127f);
  CHECK(scale_of_block(n, infinity, 0).in == 1);
  CHECK(scale_of_block(n, nan, 0).out == 1);

  const QuantizeNumbers f32_scales = numbers_of(named("fp8_block"));
  CHECK(scale_of_block(f32_scales, 0, 0).in == 1);
  CHECK(scale_of_block(f32_scales, 896, 0).out == 2);

  const QuantizeNumbers nvfp4 = numbers_of(named("nvfp4"));
  CHECK(tensor_level_of(nvfp4, 0) == 1);
  CHECK(tensor_level_of(nvfp4, nan) == 1);
  CHECK(tensor_level_of(nvfp4, 1) == 2688);
  CHECK(tensor_level_of(nvfp4, 0x1p-149f) == largest);
  CHECK(scale_of_block(nvfp4, 1, 1).out == 448);
  CHECK(scale_of_block(nvfp4, 0, 1).in == largest);
  CHECK(scale_of_block(nvfp4, 0, 1).out == 0);
}

TEST_CASE("quantizers: a scale for each row") {
  const Quantizer quantizer{.grid = formats::e4m3, .scaling = Scaling::per_row()};
  const Tensor x = from_vector(std::vector<float>{448, 17, 896, 34, 0, 0}, {3, 2});
  CHECK(quantized(x, {.quantizer = quantizer}).to_vector<float>() ==
        std::vector<float>{448, 16, 896, 32, 0, 0});
  const Tensor longer = zeros({1, Scaling::whole_row + 1});
  CHECK_THROWS_WITH_AS(quantized(longer, {.quantizer = quantizer}),
                       "[quantize] rows of 1048577 numbers have one scale each, and the limit is "
                       "1048576. Use blocks, or one scale for the tensor.",
                       UsageError);
}

TEST_CASE("quantizers: scales from a history, as a table") {
  Quantizer quantizer = named("fp8_tensor");
  quantizer.scaling = Scaling::delayed(3);
  float amax = 0, history[3] = {0, 0, 0}, scale = 1;
  int64_t position = 0;
  const auto step = [&](float seen) {
    amax = seen;
    next_scale(numbers_of(quantizer), 3, quantizer.scaling.latest, amax, history, position, scale);
    CHECK(amax == 0);
    return scale;
  };
  CHECK(step(0) == 1);  // no value was seen: the scale is unchanged
  CHECK(step(2) == 224);
  CHECK(step(7) == 64);
  CHECK(step(1) == 64);
  CHECK(step(infinity) == 64);  // changes nothing, and does not count as a step
  CHECK(step(nan) == 64);
  CHECK(position == 4);
  CHECK(step(1) == 64);
  CHECK(step(1) == 448);  // the 7 has left the history
  quantizer.scaling.margin = 1;
  CHECK(step(4) == 56);
  quantizer.scaling.latest = true;
  CHECK(step(1) == 224);
  CHECK(step(0) == 224);
}

std::string complaint(const Accumulator& accumulator) {
  return MESSAGE_OF(UsageError, check_accumulator("matmul", accumulator));
}

TEST_CASE("invalid accumulators") {
  CHECK(complaint({.grid = formats::f16}) == "");
  CHECK(complaint({.grid = formats::f16, .rounding = Rounding::stochastic}) ==
        "[matmul] an accumulator rounds stochastically. Choose another rounding: products have no "
        "random numbers.");
  CHECK(complaint({.grid = formats::f16, .chunk = -1}) ==
        "[matmul] an accumulator adds up chunks of -1. Choose 0 for one chunk, or more.");
  CHECK(complaint({.grid = {.significand_bits = 30}}).find("30 significand bits") !=
        std::string::npos);
}

}  // namespace
}  // namespace halftone::test::quantizer_test

// Quantizers that a program adds: blocks and random words by hand, files that use them, rotations
// and clips around them, surveys, and what is refused.

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
  const amp::Policy read = policy::read_text(file, "test");
  const std::string written = policy::write(read);
  CHECK(contains(written, "\"like\": \"halves\""));
  const amp::Policy again = policy::read_text(written, "test");
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
  amp::Training training(read, model, optimizer);
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

// Clips of quantizers: bounds by hand, the order of the steps, surveys whose parts add up, and
// policy files that have them.

namespace halftone::test::clip_test {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

Quantizer with_clip(std::string_view name, const Clip& clip) {
  Quantizer quantizer = *quantizer_named(name);
  quantizer.clip = clip;
  check_quantizer("test", quantizer);
  return quantizer;
}

TEST_CASE("bounds of clips, by hand") {
  const std::vector<float> x{3, -4, nan, 0, infinity, 5, -infinity};
  CHECK(clip_bound({}, x) == infinity);
  CHECK(clip_bound({.rms = 2}, x) == float(2 * std::sqrt(50.0 / 4)));
  // The finite magnitudes are 0 3 4 5.
  CHECK(clip_bound({.quantile = 1}, x) == 5);
  CHECK(clip_bound({.quantile = 0.76}, x) == 5);
  CHECK(clip_bound({.quantile = 0.75}, x) == 4);
  CHECK(clip_bound({.quantile = 0.5}, x) == 3);
  CHECK(clip_bound({.quantile = 1e-9}, x) == 0);
  CHECK(clip_bound({.rms = 2}, std::vector<float>{nan}) == 0);
  CHECK(clip_bound({.quantile = 0.5}, {}) == 0);
  CHECK(clipped(3, 3.5f) == 3);
  CHECK(clipped(-4, 3.5f) == -3.5f);
  CHECK(clipped(-4, infinity) == -4);
  CHECK(std::isnan(clipped(nan, 3.5f)));
  CHECK(clipped(-infinity, 3.5f) == -infinity);
  CHECK(std::signbit(clipped(-5, 0)));
}

TEST_CASE("bounds of clips: sums of squares in 256 lanes") {
  // One number is 1, the square of the others is 2^-54, so 1 + 2^-54 is 1.
  std::vector<float> x(4096, 0x1p-27f);
  x[256] = 1;
  const auto square = [&](int64_t i) { return finite_square(x[std::size_t(i)]); };
  CHECK(summed_by_lanes(4096, square) == 1 + 255 * 0x1p-50);
  CHECK(summed_by_lanes(3, square) == 3 * 0x1p-54);
  CHECK(summed_by_lanes(257, square) == 1 + 63 * 0x1p-52);
  CHECK(summed_by_lanes(0, square) == 0);
  CHECK(finite_square(nan) == 0);
  CHECK(finite_square(-infinity) == 0);
}

TEST_CASE("bounds of clips: the order of the sum of squares, in pieces of 4096") {
  manual_seed(7);
  for (const int64_t n : {300, 4096, 4097, 20'000, 257 * 4096 + 300}) {
    INFO(n, " numbers");
    const std::vector<float> x = randn({n}).to_vector<float>();
    const double sum = ordered_squares(x);
    const auto [above, below] = clips_near_the_middle(sum, n);
    CHECK(clip_bound(above, x) == 1 + 0x1p-23f);
    CHECK(clip_bound(below, x) == 1);
    // The two clips notice sums that are larger or smaller by 4 units in the last place.
    const double more = sum * (1 + 0x1p-50), less = sum * (1 - 0x1p-50);
    CHECK(bound_by_rms(*below.rms, more, n) != 1);
    CHECK(bound_by_rms(*above.rms, less, n) == 1);
  }
}

/// Clamps x by hand.
Tensor clamped(const Tensor& x, const Clip& clip) {
  std::vector<float> values = x.to_vector<float>();
  const float bound = clip_bound(clip, values);
  for (float& v : values) v = std::min(std::max(v, -bound), bound);
  return from_vector(values, x.shape());
}

TEST_CASE("a clip comes after the rotation and before the scale") {
  manual_seed(1);
  const Tensor x = randn({6, 64});
  for (const Clip& clip : {Clip{.rms = 1.5}, Clip{.quantile = 0.9}})
    for (const char* name : {"e4m3", "e2m1", "mxfp4", "nvfp4", "fp8_tensor", "fp8_block"}) {
      CAPTURE(name);
      const Quantizer plain = *quantizer_named(name);
      const std::vector<float> wanted =
          quantized(clamped(x, clip), {.quantizer = plain}).to_vector<float>();
      CHECK(quantized(x, {.quantizer = with_clip(name, clip)}).to_vector<float>() == wanted);
      CHECK(quantized(x, {.quantizer = plain}).to_vector<float>() != wanted);
      Tensor y = x.clone();
      quantize_in_place(y, {.quantizer = with_clip(name, clip)});
      CHECK(y.to_vector<float>() == wanted);
      const Tensor skip = ones({});
      Tensor same = x.clone();
      quantize_in_place(same, {.quantizer = with_clip(name, clip), .skip = skip});
      CHECK(same.to_vector<float>() == x.to_vector<float>());
    }
  Quantizer rotated = with_clip("mxfp4", {.rms = 1});
  rotated.hadamard = 16;
  Quantizer turns = *quantizer_named("mxfp4");
  Tensor turned = empty(x.shape(), f32);
  Rotation rotation{.size = 16};
  backend_for(x).rotate(x, rotation, turned);
  Tensor wanted = quantized(clamped(turned, {.rms = 1}), {.quantizer = turns});
  rotation.back = true;
  backend_for(x).rotate(wanted, rotation, wanted);
  CHECK(quantized(x, {.quantizer = rotated}).to_vector<float>() == wanted.to_vector<float>());
}

TEST_CASE("a skipped quantizer of several steps changes no bit") {
  manual_seed(6);
  const Tensor x = randn({6, 64}), skip = ones({});
  Quantizer rotated = *quantizer_named("mxfp4");
  rotated.hadamard = 16;
  Quantizer both = with_clip("nvfp4", {.rms = 1});
  both.hadamard = 32;
  for (const Quantizer& quantizer : {rotated, both}) {
    Tensor same = x.clone(), changed = x.clone();
    quantize_in_place(same, {.quantizer = quantizer, .skip = skip});
    CHECK(same.to_vector<float>() == x.to_vector<float>());
    quantize_in_place(changed, {.quantizer = quantizer, .skip = zeros({})});
    CHECK(changed.to_vector<float>() == quantized(x, {.quantizer = quantizer}).to_vector<float>());
  }
}

TEST_CASE("a clip of 1 as a quantile changes nothing; layouts and dtypes do not matter") {
  manual_seed(2);
  const Tensor x = randn({8, 32});
  CHECK(quantized(x, {.quantizer = with_clip("mxfp8", {.quantile = 1})}).to_vector<float>() ==
        quantized(x, {.quantizer = *quantizer_named("mxfp8")}).to_vector<float>());
  const Quantizer q = with_clip("e4m3", {.rms = 1});
  CHECK(transpose(quantized(transpose(x, 0, 1), {.quantizer = q}), 0, 1).shape() == x.shape());
  const Tensor narrow = cast(x, bf16), wide = cast(narrow, f32);
  const Quantizer mx = with_clip("mxfp8", {.rms = 1});
  const Tensor y = quantized(narrow, {.quantizer = mx});
  CHECK(y.dtype() == bf16);
  CHECK(y.to_vector<float>() == quantized(wide, {.quantizer = mx}).to_vector<float>());
}

TEST_CASE("a gradient passes a clipped element as any other") {
  manual_seed(3);
  Tensor x = randn({4, 32}).set_requires_grad();
  const Tensor dy = randn({4, 32});
  quantize(x, with_clip("mxfp4", {.rms = 0.5})).backward(dy);
  CHECK(x.grad().to_vector<float>() == dy.to_vector<float>());
}

TEST_CASE("a survey counts clipped numbers as saturated, and its parts add up") {
  manual_seed(4);
  const Tensor x = randn({16, 64});
  const Clip clip{.rms = 1};
  const float bound = clip_bound(clip, x.to_vector<float>());
  for (const char* name : {"e4m3", "mxfp4", "mxfp8", "nvfp4", "fp8_tensor"}) {
    CAPTURE(name);
    const Tensor row = new_survey_row(Device::cpu());
    const Tensor y = quantized(x, {.quantizer = with_clip(name, clip), .survey = row});
    const Survey survey = Survey::from(row);
    double e2 = 0, beyond = 0;
    const std::vector<float> before = x.to_vector<float>(), after = y.to_vector<float>();
    for (std::size_t i = 0; i < before.size(); ++i) {
      const double e = double(after[i]) - double(before[i]);
      e2 += e * e, beyond += std::abs(before[i]) > bound;
    }
    CHECK(beyond > 100);
    CHECK(survey.sums.count == 1024);
    CHECK(survey.sums.saturated >= beyond);
    CHECK(survey.sums.sum_e2 == doctest::Approx(e2).epsilon(1e-12));
    const ErrorParts parts = survey.error_parts();
    CHECK(std::abs(parts.whole() - e2) <= 1e-12 * e2);
    CHECK(parts.saturation > 0.1 * e2);
  }
}

TEST_CASE("clips in policy files") {
  for (const char* clip : {R"({"rms": 4})", R"({"quantile": 0.999})"}) {
    const amp::Policy file =
        file_of(R"("rules": [{"input": {"like": "mxfp4", "clip": )" + std::string(clip) + "}}]");
    const std::string text = policy::write(file);
    const amp::Policy again = policy::read_text(text, "again");
    CHECK(again.rules == file.rules);
    CHECK(policy::write(again) == text);
    CHECK(file.rules.rules[0].roles.begin()->second.quantizer.clip.any());
  }
  CHECK(file_of(R"("quantizers": {"a": {"format": "e2m1", "clip": {"rms": 4}}},
                   "rules": [{"input": {"like": "a", "clip": "none"}}])")
            .rules.rules[0]
            .roles.begin()
            ->second.quantizer == Quantizer{.grid = formats::e2m1});
  const auto refusal = [](const char* clip) {
    return refusal_of_quantizer(R"("format": "e2m1", "clip": )" + std::string(clip));
  };
  CHECK(refusal(R"({"rms": 4, "quantile": 0.5})") ==
        "/quantizers/q/clip: numbers are clipped by rms and by quantile. Leave one out.");
  CHECK(refusal("{}") == "/quantizers/q/clip: \"rms\" or \"quantile\" is missing.");
  CHECK(refusal(R"({"rms": 0})") ==
        "/quantizers/q/clip: numbers are clipped at 0 root mean squares. Choose a positive number, "
        "such as 4.");
  CHECK(refusal(R"({"quantile": 1.5})") ==
        "/quantizers/q/clip: numbers are clipped at the quantile 1.5. Choose a number above 0 and "
        "up to 1, such as 0.999.");
  CHECK(
      refusal(R"({"quantile": 0})").starts_with("/quantizers/q/clip: numbers are clipped at the "));
  CHECK(refusal(R"({"sigma": 4})").starts_with("/quantizers/q/clip/sigma: a clip has no entry"));
  CHECK(contains(refusal(R"({"rms": 4}, "scale": {"per": "tensor", "from": "history"})"),
                 "the scale is from history"));
  CHECK(described(with_clip("e2m1", {.rms = 4})) == "e2m1, clipped at 4 root mean squares");
  CHECK(described(with_clip("e2m1", {.quantile = 0.5})) == "e2m1, clipped at the quantile 0.5");
}

}  // namespace
}  // namespace halftone::test::clip_test
