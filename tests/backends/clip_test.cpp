// Bounds and clips of the CPU's backends and of each instruction set: the bits of the loops in
// core/clip.cpp.
#include <cmath>
#include <limits>

#include <halftone/core/backend.h>
#include <halftone/core/clip.h>

#include "../core/clip_cases.h"
#include "../temporary_directory.h"
#include "backends/float_bits.h"
#include "simd_levels.h"

namespace halftone::test::backends_clip_test {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

/// Numbers of many magnitudes; some are zeros, infinite, NaN, or the smallest.
Tensor awkward(int64_t count) {
  Tensor x = randn({count});
  const float special[] = {0, -0.0f, infinity, -infinity, nan, 0x1p-149f, 3e38f};
  for (int64_t i = 0; i < count; ++i) {
    float& value = x.data<float>()[i];
    value = std::ldexp(value, int(i * 7 % 23) - 11);
    if (i % 97 == 60) value = special[i / 97 % 7];
  }
  return x;
}

TEST_CASE("the backends of the CPU compute the bound of a clip as the host does, and the clip") {
  manual_seed(5);
  for (const int64_t n : {1, 2, 255, 256, 257, 4095, 4096, 4097, 12'345, 300'001}) {
    const Tensor x = awkward(n);
    if (n == 12'345) std::fill_n(x.data<float>() + 100, 9000, 0.75f);
    const std::vector<float> values = x.to_vector<float>();
    for (const Clip& clip :
         {Clip{.rms = 2.5}, Clip{.quantile = 1e-9}, Clip{.quantile = 0.5}, Clip{.quantile = 0.9},
          Clip{.quantile = 0.999}, Clip{.quantile = 1}, Clip{}})
      for (const char* name : {"reference", "cpu"}) {
        INFO(name, ", ", n, " numbers");
        const CpuBackendScope scope(name);
        Tensor bound = empty({}), y = empty({n});
        backend_for(x).clip_bound(x, clip, bound);
        const float wanted = clip_bound(clip, values);
        CHECK(bound.data<float>()[0] == wanted);
        backend_for(x).clip(x, bound, y);
        int64_t wrong = 0;
        for (int64_t i = 0; i < n; ++i) {
          const float v = values[std::size_t(i)], got = y.data<float>()[i];
          if (std::isnan(v)) wrong += !std::isnan(got);
          else wrong += got != (std::isinf(v) ? v : std::min(std::max(v, -wanted), wanted));
        }
        CHECK(wrong == 0);
      }
  }
  for (const char* name : {"reference", "cpu"}) {
    const CpuBackendScope scope(name);
    Tensor bound = empty({});
    backend_for(bound).clip_bound(numbers_that_show_the_order(), clip_that_shows_the_order(),
                                  bound);
    CHECK(bound.data<float>()[0] == 1 + 0x1p-23f);
  }
  for (const Clip& clip : {Clip{.rms = 2}, Clip{.quantile = 0.5}}) {
    const Tensor none = from_vector(std::vector<float>{nan, infinity}, {2});
    Tensor bound = empty({});
    backend_for(none).clip_bound(none, clip, bound);
    CHECK(bound.data<float>()[0] == 0);
  }
}

TEST_CASE("clip: every instruction set sums in the same order and clips alike") {
  manual_seed(9);
  const std::vector<float> ordered = numbers_that_show_the_order().to_vector<float>(),
                           mixed = awkward(9001).to_vector<float>();
  each_level([&](const simd::Kernels& k) {
    int64_t finite = 0;
    CHECK(k.finite_squares(ordered.data(), 4096, finite) == 1 + 255 * 0x1p-50);
    CHECK(finite == 4096);
    for (const int64_t n : lengths()) {
      INFO(n, " numbers");
      std::vector<float> y(std::size_t(n) + 1, 77.0f), wanted = y;
      int64_t numbers = 0;
      for (std::size_t i = 0; i < std::size_t(n); ++i)
        wanted[i] = clipped(mixed[i], 1.5f), numbers += std::isfinite(mixed[i]);
      k.clip(mixed.data(), 1.5f, y.data(), n);
      CHECK(bits_of(y) == bits_of(wanted));
      const auto square = [&](int64_t i) { return finite_square(mixed[std::size_t(i)]); };
      CHECK(k.finite_squares(mixed.data(), n, finite) == summed_by_lanes(n, square));
      CHECK(finite == numbers);
    }
  });
}

}  // namespace
}  // namespace halftone::test::backends_clip_test
