// A model of the accumulator in which a product adds up its terms: after each term the sum is
// rounded to a grid. Real tensor cores align a few products to the largest exponent and cut them
// off. This model does not claim to be one of them (docs/number_formats.md).
#pragma once

#include <halftone/core/formats/number_format.h>

namespace halftone {

/// Describes how sums are rounded. Within a chunk sum = on(sum + a_k b_k), in order of k; the
/// product and the sum are floats rounded to nearest. Chunks are added up in f32, in order. The
/// bias is added last, and one rounding to the dtype of the result follows.
struct Accumulator {
  NumberFormat grid{};
  Rounding rounding = Rounding::nearest_even;
  int32_t chunk = 0;  // 0: all of k is one chunk
  bool operator==(const Accumulator&) const = default;
};

/// Throws UsageError of `op` for stochastic rounding, a negative chunk or an invalid grid.
void check_accumulator(std::string_view op, const Accumulator& accumulator);

#if defined(__CUDA_ARCH__)
/// Return a * b and a + b, each rounded: never fused into one operation.
HT_HD float rounded_product(float a, float b) { return __fmul_rn(a, b); }
HT_HD float rounded_sum(float a, float b) { return __fadd_rn(a, b); }
#else
HT_HD constexpr float rounded_product(float a, float b) { return a * b; }
HT_HD constexpr float rounded_sum(float a, float b) { return a + b; }
#endif

}  // namespace halftone
