// Bounds and clips of the CPU's backends and of each instruction set: the bits of the loops in
// core/formats/block_scale.cpp.
#include <algorithm>
#include <cmath>
#include <limits>

#include <halftone/core/backend.h>
#include <halftone/core/factory.h>
#include <halftone/core/formats/block_scale.h>

#include "../core/clip_cases.h"
#include "../support.h"
#include "backends/float_bits.h"
#include "simd_levels.h"

namespace halftone::test::backends_clip_test {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

/// Numbers of many magnitudes; some are zeros, infinite, NaN, or the smallest.
Tensor awkward(int64_t count) {
  Tensor x = randn({count});
  const float special[] = {0, -0.0f, infinity, -infinity, nan, 0x1p-149f};
  for (int64_t i = 0; i < count; ++i) {
    float& value = x.data<float>()[i];
    value = std::ldexp(value, int(i * 7 % 23) - 11);
    if (i % 97 == 60) value = special[i / 97 % 6];
  }
  return x;
}

float bound_of(const Clip& clip, const Tensor& x) {
  Tensor bound = empty({});
  backend_for(x).clip_bound(x, clip, bound);
  return bound.data<float>()[0];
}

TEST_CASE("clip: the backends of the CPU give the bits of the loops") {
  manual_seed(5);
  for (const int64_t n : {1, 2, 255, 256, 257, 4095, 4096, 4097, 12'345, 600'001}) {
    const Tensor x = awkward(n);
    if (n == 12'345) std::fill_n(x.data<float>() + 100, 9000, 0.75f);
    const std::vector<float> values = x.to_vector<float>();
    for (const Clip& clip :
         {Clip{.rms = 0.5}, Clip{.quantile = 1e-9}, Clip{.quantile = 0.5}, Clip{.quantile = 0.9},
          Clip{.quantile = 0.999}, Clip{.quantile = 1}, Clip{}})
      for (const char* name : {"reference", "cpu"}) {
        INFO(name, ", ", n, " numbers");
        const CpuBackendScope scope(name);
        const float wanted = clip_bound(clip, values);
        CHECK(bound_of(clip, x) == wanted);
        Tensor y = empty({n});
        backend_for(x).clip(x, scalar(wanted), y);
        int64_t wrong = 0;
        for (int64_t i = 0; i < n; ++i) {
          const float v = values[std::size_t(i)], got = y.data<float>()[i];
          if (std::isnan(v)) wrong += !std::isnan(got);
          else wrong += got != (std::isinf(v) ? v : std::min(std::max(v, -wanted), wanted));
        }
        CHECK(wrong == 0);
      }
  }
}

TEST_CASE("clip: the backends of the CPU sum in the order of the loops") {
  manual_seed(6);
  for (const int64_t n : {300, 4096, 5000, 20'000, 257 * 4096 + 300}) {
    const Tensor x = randn({n});
    const auto [above, below] = clips_near_the_middle(ordered_squares(x.to_vector<float>()), n);
    for (const char* name : {"reference", "cpu"}) {
      INFO(name, ", ", n, " numbers");
      const CpuBackendScope scope(name);
      CHECK(bound_of(above, x) == 1 + 0x1p-23f);
      CHECK(bound_of(below, x) == 1);
    }
  }
}

TEST_CASE("clip: the bound of no finite number is 0") {
  const Tensor none = from_vector(std::vector<float>{nan, infinity}, {2});
  for (const Clip& clip : {Clip{.rms = 2}, Clip{.quantile = 0.5}}) CHECK(bound_of(clip, none) == 0);
}

TEST_CASE("clip: every instruction set sums in the same order and clips alike") {
  manual_seed(9);
  const std::vector<float> x = awkward(9001).to_vector<float>();
  each_level([&](const simd::Kernels& k) {
    for (const int64_t n : lengths()) {
      INFO(n, " numbers");
      std::vector<float> y(std::size_t(n) + 1, 77.0f), wanted = y;
      std::vector<double> squares;
      int64_t numbers = 0, finite = 0;
      for (std::size_t i = 0; i < std::size_t(n); ++i) {
        wanted[i] = clipped(x[i], 1.5f), numbers += std::isfinite(x[i]);
        squares.push_back(finite_square(x[i]));
      }
      k.clip(x.data(), 1.5f, y.data(), n);
      CHECK(bits_of(y) == bits_of(wanted));
      CHECK(k.finite_squares(x.data(), n, finite) == lanes_sum(squares));
      CHECK(finite == numbers);
    }
  });
}

}  // namespace
}  // namespace halftone::test::backends_clip_test
