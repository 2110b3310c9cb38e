// What a product adds its terms up in, as a model: after each term the sum goes onto a grid. Real
// tensor cores align a few products to the largest exponent and cut them off; this does not claim
// to be one of them (docs/number_formats.md).
#pragma once

#include <halftone/core/number_format.h>

namespace halftone {

/// Within a chunk sum = on(sum + a_k b_k), in order of k, where the product and the sum are floats
/// rounded to nearest; chunks are added up in f32, in order. Then comes the bias, then one rounding
/// to the dtype of the result.
struct Accumulator {
  NumberFormat grid{};
  Rounding rounding = Rounding::nearest_even;
  int32_t chunk = 0;  // 0: all of k is one chunk
  bool operator==(const Accumulator&) const = default;
};

/// UsageError of `op` for stochastic rounding, a negative chunk, a grid that is none.
void check_accumulator(std::string_view op, const Accumulator& accumulator);

#if defined(__CUDA_ARCH__)
/// a * b and a + b, each rounded: never fused into one.
HT_HD float rounded_product(float a, float b) { return __fmul_rn(a, b); }
HT_HD float rounded_sum(float a, float b) { return __fadd_rn(a, b); }
#else
HT_HD constexpr float rounded_product(float a, float b) { return a * b; }
HT_HD constexpr float rounded_sum(float a, float b) { return a + b; }
#endif

}  // namespace halftone
