// Wire formats compared with core's quantizers, and values that they must transmit.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <doctest/doctest.h>

#include <halftone/core/backend.h>
#include <halftone/core/factory.h>
#include <halftone/core/formats/quantizer.h>
#include <halftone/core/tensor.h>
#include <halftone/distributed/wire.h>

#include "../support.h"

namespace halftone::test::wire_test {
namespace {
using distributed::check_wire;
using distributed::from_wire;
using distributed::Payload;
using distributed::to_wire;
using distributed::WireFormat;

std::vector<float> floats(const Tensor& x) { return x.to_vector<float>(); }

/// Numbers of many magnitudes, with zeros of both signs.
Tensor gradients(int64_t count, uint64_t seed, DType dtype = f32) {
  Generator before = default_generator();
  manual_seed(seed);
  Tensor x = randn({count});
  default_generator() = before;
  for (int64_t i = 0; i < count; ++i) {
    x.data<float>()[i] *= std::ldexp(1.0F, int(i % 40) - 30 - int(i / 1024) * 9);
    if (i % 17 == 5) x.data<float>()[i] = i % 2 == 0 ? 0.0F : -0.0F;
  }
  Tensor y = empty({count}, dtype);
  copy_into(y, x);
  return y;
}

std::vector<float> there_and_back(const Tensor& x, std::string_view wire, RandomKey key = {}) {
  return floats(from_wire(to_wire(x, WireFormat::named(wire), key)));
}

Quantizer quantizer_of(std::string_view format, Rounding rounding) {
  Quantizer quantizer{.grid = *number_format_named(format), .rounding = rounding};
  if (format != "bf16") quantizer.scaling = Scaling::per_block(1, 1024);
  quantizer.scaling.rule = ScaleRule::rceil;
  return quantizer;
}

TEST_CASE("wire: names") {
  CHECK(WireFormat::names().size() == 20);
  for (const std::string_view text : WireFormat::names()) {
    CHECK(name(WireFormat::named(text)) == text);
    CHECK_NOTHROW(check_wire(WireFormat::named(text)));
  }
  CHECK(WireFormat::named("own") == WireFormat{});
  CHECK(WireFormat::named("f8_e5m2-sr+feedback") ==
        WireFormat{.dtype = f8_e5m2, .stochastic = true, .error_feedback = true});
  CHECK(message_of<UsageError>([] { WireFormat::named("f8_e4m2"); }) ==
        "[distributed] there is no wire format named \"f8_e4m2\". Did you mean \"f8_e4m3\"?");
  CHECK(message_of<UsageError>([] { WireFormat::named("bf16+feedbck"); }) ==
        "[distributed] there is no wire format named \"bf16+feedbck\". Did you mean "
        "\"bf16+feedback\"?");
  CHECK_THROWS_AS(WireFormat::named("f32-sr"), UsageError);
  CHECK_THROWS_AS(check_wire({.dtype = f32, .stochastic = true}), UsageError);
  CHECK_THROWS_AS(check_wire({.dtype = f64}), UsageError);
}

TEST_CASE("wire: values that a dtype represents do not change") {
  for (const DType own : {f32, bf16, f16, f64})
    for (const char* wire : {"own", "f32", "own+feedback"}) {
      const Tensor x = gradients(100, 1, own);
      const Payload payload = to_wire(x, WireFormat::named(wire));
      CHECK(!payload.scales.defined());
      CHECK(payload.values.to_vector<double>() == x.to_vector<double>());
      CHECK(from_wire(payload).dtype() == (own == f64 ? f64 : f32));
    }
  const Tensor x = gradients(100, 1, bf16), wide = gradients(100, 1, f64);
  for (const char* wire : {"bf16", "bf16-sr", "bf16-sr+feedback"}) {
    CHECK(to_wire(x, WireFormat::named(wire)).values.raw_data() == x.raw_data());
    CHECK(to_wire(wide, WireFormat::named(wire)).values.dtype() == f64);
  }
}

TEST_CASE("wire: the numbers of core's quantizer, and no others") {
  struct Case {
    const char *wire, *grid;
    DType dtype;
  };
  for (const auto& [wire, grid, dtype] :
       {Case{"bf16", "bf16", bf16}, Case{"f16", "f16", f16}, Case{"f8_e4m3", "e4m3", f8_e4m3},
        Case{"f8_e5m2", "e5m2", f8_e5m2}})
    for (const int64_t count : {0, 1, 5, 1023, 1024, 1025, 5000})
      for (const bool stochastic : {false, true}) {
        CAPTURE(wire);
        CAPTURE(count);
        CAPTURE(stochastic);
        const Tensor x = gradients(count, 3);
        const RandomKey key{5, 9};
        const Quantizer quantizer =
            quantizer_of(grid, stochastic ? Rounding::stochastic : Rounding::nearest_even);
        const std::string name = std::string(wire) + (stochastic ? "-sr" : "");
        const Payload payload = to_wire(x, WireFormat::named(name), key);
        CHECK(payload.values.dtype() == dtype);
        CHECK(payload.values.numel() == count);
        CHECK(floats(from_wire(payload)) ==
              floats(quantized(x, {.quantizer = quantizer, .key = key})));
      }
}

TEST_CASE("wire: gradients that are short already") {
  const Tensor x = gradients(1500, 4, bf16), wide = from_vector(x.to_vector<float>(), {1500});
  CHECK(there_and_back(x, "f8_e4m3") == there_and_back(wide, "f8_e4m3"));
  CHECK(there_and_back(x, "f8_e4m3") != floats(wide));
}

TEST_CASE("wire: any range of a tensor has the values of the whole tensor there") {
  const Tensor x = gradients(5000, 6);
  for (const char* wire : {"own", "bf16-sr", "f16", "f8_e4m3"}) {
    const WireFormat format = WireFormat::named(wire);
    const Payload whole = to_wire(x, format, {1, 2});
    const std::vector<float> all = floats(from_wire(whole));
    for (const auto& [begin, count] : {std::pair<int64_t, int64_t>{0, 5000},
                                       {64, 960},
                                       {1024, 1024},
                                       {960, 1088},
                                       {1088, 3912},
                                       {4992, 8},
                                       {64, 0}}) {
      CAPTURE(wire);
      CAPTURE(begin);
      const Payload part = whole.part(begin, count);
      Payload arriving = Payload::empty(format, f32, begin, count);  // as another rank receives it
      const auto sent = part.tensors(), to_come = arriving.tensors();
      REQUIRE(sent.size() == to_come.size());
      for (std::size_t k = 0; k < sent.size(); ++k) {
        REQUIRE(sent[k].bytes() == to_come[k].bytes());
        copy_into(to_come[k], sent[k]);
      }
      const std::vector<float> own = floats(from_wire(arriving));
      CHECK(own == std::vector<float>(all.begin() + begin, all.begin() + begin + count));
    }
  }
}

TEST_CASE("wire: infinity and NaN pass, and affect only their piece") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  Tensor x = gradients(3000, 8);
  const Tensor finite = x.clone();
  x.data<float>()[1500] = -infinity, x.data<float>()[1700] = NAN;
  for (const char* wire : {"bf16", "bf16-sr", "f16", "f8_e5m2", "f8_e4m3", "f8_e4m3-sr"}) {
    CAPTURE(wire);
    const std::vector<float> now = there_and_back(x, wire), before = there_and_back(finite, wire);
    const bool has_infinity = std::string_view(wire).substr(0, 7) != "f8_e4m3";
    CHECK((has_infinity ? now[1500] == -infinity : std::isnan(now[1500])));
    CHECK(std::isnan(now[1700]));
    for (std::size_t i = 0; i < 3000; ++i)
      if (i < 1024 || i >= 2048) CHECK(now[i] == before[i]);
  }
}

TEST_CASE("wire: no finite number becomes infinite under a scale") {
  for (const char* wire : {"f16", "f8_e4m3", "f8_e5m2", "f8_e4m3-sr"})
    for (const float x : {3e38F, 1.0F, 448.0F, 463.0F, 65519.0F, 1e-38F}) {
      CAPTURE(wire);
      CAPTURE(x);
      const float y = there_and_back(full({3}, x), wire, {1, 1})[1];
      CHECK(std::abs(y - x) <= x / 8);
    }
}

TEST_CASE("wire: random rounding is unbiased, and depends only on its key") {
  const Tensor x = full({20000}, 1.0F + 0x1p-9F);  // a quarter of the way to bf16's next
  const WireFormat format = WireFormat::named("bf16-sr");
  const std::vector<float> y = floats(from_wire(to_wire(x, format, {3, 1})));
  const auto up = double(std::ranges::count(y, 1.0F + 0x1p-7F));
  CHECK(std::ranges::count(y, 1.0F) == 20000 - int64_t(up));
  CHECK(std::abs(up / 20000 - 0.25) < 5 * std::sqrt(0.25 * 0.75 / 20000));
  CHECK(floats(from_wire(to_wire(x, format, {3, 1}))) == y);
  CHECK(floats(from_wire(to_wire(x, format, {3, 1 << 20}))) != y);
  CHECK(floats(from_wire(to_wire(x, format, {4, 1}))) != y);
}

TEST_CASE("wire: with error feedback the errors do not accumulate") {
  const Tensor x = gradients(2000, 12);
  for (const char* wire : {"f8_e4m3", "f8_e5m2-sr", "bf16", "f16"}) {
    CAPTURE(wire);
    const WireFormat format = WireFormat::named(std::string(wire) + "+feedback");
    const Tensor rest = zeros({2000});
    std::vector<double> sum(2000, 0), plain(2000, 0);
    constexpr int steps = 64;
    for (int step = 0; step < steps; ++step) {
      const RandomKey key{1, uint64_t(step) << 20};
      const std::vector<float> c = floats(from_wire(to_wire(x, format, key, {rest}))),
                               without = there_and_back(x, wire, key);
      for (std::size_t i = 0; i < 2000; ++i) sum[i] += double(c[i]), plain[i] += double(without[i]);
    }
    double fed = 0, unfed = 0;
    for (std::size_t i = 0; i < 2000; ++i) {
      const double exact = steps * double(x.data<float>()[i]);
      fed += std::abs(sum[i] - exact), unfed += std::abs(plain[i] - exact);
      // The only missing part is that of the last rounding.
      CHECK(sum[i] + double(rest.data<float>()[i]) ==
            doctest::Approx(exact).epsilon(1e-5 * std::abs(exact) + 1e-30));
    }
    CHECK(fed < unfed / 4);
  }
}

TEST_CASE("wire: error feedback follows the loss scale, and an overflow does not spoil it") {
  const WireFormat format = WireFormat::named("f8_e4m3+feedback");
  Tensor x = full({1030}, 0.3);
  const Tensor rest = zeros({1030});
  to_wire(x, format, {}, {rest});
  const std::vector<float> kept = floats(rest);
  CHECK(kept[0] != 0);
  x.data<float>()[3] = std::numeric_limits<float>::infinity();
  to_wire(x, format, {}, {rest, 0.5});
  const std::vector<float> after = floats(rest);
  for (std::size_t i = 0; i < 1024; ++i) CHECK(after[i] == kept[i] / 2);
  CHECK(after[1029] != kept[1029] / 2);  // in a piece that was finite
}

}  // namespace
}  // namespace halftone::test::wire_test
