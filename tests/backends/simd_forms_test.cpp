// Weight forms and the check of scaled gradients on every instruction set: forms against
// the scalar functions of core/update_rules.h, bit for bit.
#include "simd_levels.h"

#include <bit>
#include <limits>

#include <halftone/core/update_rules.h>

namespace halftone::test::simd_forms_test {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

/// Arbitrary bits, including subnormals, infinities and NaN.
std::vector<float> any_floats(uint64_t seed, int64_t count) {
  Numbers numbers(seed);
  std::vector<float> values{0.0f, -0.0f, infinity, -infinity, std::nanf(""), 1e-40f, -3e38f};
  while (int64_t(values.size()) < count)
    values.push_back(std::bit_cast<float>(uint32_t(numbers.word())));
  return values;
}

TEST_CASE("halves of floats, cut off and rounded, on every instruction set") {
  const std::vector<float> x = any_floats(50, 5000);
  each_level([&](const simd::Kernels& k) {
    for (const bool rounded : {false, true})
      for (const int64_t n : {0, 1, 7, 16, 33, 1000, 4999}) {
        INFO(n, " elements, rounded ", rounded);
        const WeightForm form = rounded ? WeightForm::split_rounded : WeightForm::split;
        std::vector<uint16_t> upper(x.size(), 9);
        std::vector<int16_t> lower(x.size(), 9);
        std::vector<float> back(x.size(), 9);
        k.encode_halves(form, x.data(), upper.data(), lower.data(), n);
        k.decode_halves(form, upper.data(), lower.data(), back.data(), n);
        bool right = upper[std::size_t(n)] == 9 && lower[std::size_t(n)] == 9;
        for (std::size_t i = 0; i < std::size_t(n); ++i) {
          const auto bits = std::bit_cast<uint32_t>(x[i]);
          const auto top = uint16_t((bits >> 16) + (rounded ? bits >> 15 & 1 : 0));
          right = right && upper[i] == top && lower[i] == int16_t(bits) &&
                  std::bit_cast<uint32_t>(back[i]) == bits;
        }
        CHECK(right);
        CHECK(back[std::size_t(n)] == 9.0f);
      }
  });
}

TEST_CASE("stochastic rounding starts anywhere in its stream") {
  const std::vector<float> x = any_floats(51, 1200);
  each_level([&](const simd::Kernels& k) {
    for (const RandomKey key : {RandomKey{5, 0}, RandomKey{6, 0xfffffffau}})
      for (const uint64_t first : {0u, 1u, 2u, 7u, 8u, 1024u, 1001u})
        for (const int64_t n : {1, 2, 5, 64, 300, 1199}) {
          std::vector<uint16_t> random(x.size(), 9);
          std::vector<float> y(x.size(), 9);
          k.random_halves(key, first, random.data(), n);
          k.encode(WeightForm::stochastic, x.data(), random.data(), y.data(), nullptr, n);
          bool right = random[std::size_t(n)] == 9 && y[std::size_t(n)] == 9;
          for (std::size_t i = 0; i < std::size_t(n); ++i) {
            const uint16_t half = random_half(key, first + i);
            const float wanted = float(round_stochastically(x[i], half));
            right = right && random[i] == half &&
                    std::bit_cast<uint32_t>(y[i]) == std::bit_cast<uint32_t>(wanted);
          }
          CHECK_MESSAGE(right, n, " elements from ", first, ", counters from ", key.offset);
        }
  });
}

TEST_CASE("one infinity or NaN is found at every position") {
  each_level([&](const simd::Kernels& k) {
    for (const int64_t n : {1, 7, 16, 100})
      for (const float bad : {infinity, -infinity, std::nanf(""), 3e38f})
        for (int64_t place = 0; place < n; ++place) {
          std::vector<float> x(std::size_t(n) + 1, 1.5f), y(std::size_t(n) + 1, 9.0f);
          x[std::size_t(place)] = bad;
          x.back() = infinity;
          CHECK(k.unscale(x.data(), 2, nullptr, n) == (bad == 3e38f));
          CHECK(k.unscale(x.data(), 2, y.data(), n) == (bad == 3e38f));
          if (n > 1) CHECK(y[std::size_t((place + 1) % n)] == 3.0f);
          CHECK(y.back() == 9.0f);
        }
    CHECK(k.unscale(nullptr, 2, nullptr, 0));
  });
}

}  // namespace
}  // namespace halftone::test::simd_forms_test
