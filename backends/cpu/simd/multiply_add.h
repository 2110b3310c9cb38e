// a * b + c for registers. Portable tables round it once on every instruction set; the other tables
// leave it to the compiler, which has fused instructions on AVX2 and AVX-512.
#pragma once

#include <halftone/backends/cpu/simd/local.h>

#if defined(HALFTONE_PORTABLE) && (defined(__FMA__) || defined(__AVX512F__))
#include <halftone/backends/cpu/simd/intrinsics.h>
#endif

namespace halftone::simd::HALFTONE_ISA {

#if !defined(HALFTONE_PORTABLE)

[[gnu::always_inline]] inline Register multiply_add(float a, Register b, Register c) {
  return c + a * b;
}
[[gnu::always_inline]] inline Register multiply_add(Register a, Register b, Register c) {
  return c + a * b;
}

#else

#if defined(__AVX512F__)

[[gnu::always_inline]] inline Register repeated(float a) { return (Register)_mm512_set1_ps(a); }
[[gnu::always_inline]] inline Register multiply_add(Register a, Register b, Register c) {
  return (Register)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}

#elif defined(__FMA__)

[[gnu::always_inline]] inline Register repeated(float a) { return (Register)_mm256_set1_ps(a); }
[[gnu::always_inline]] inline Register multiply_add(Register a, Register b, Register c) {
  return (Register)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}

#else

[[gnu::always_inline]] inline Register repeated(float a) {
  Register all;
  for (int k = 0; k < register_lanes; ++k) all[k] = a;
  return all;
}

#if defined(__ARM_FEATURE_FMA)

[[gnu::always_inline]] inline Register multiply_add(Register a, Register b, Register c) {
  for (int k = 0; k < register_lanes; ++k) c[k] = __builtin_fmaf(a[k], b[k], c[k]);
  return c;
}

#else

/// Without the instruction, in double: the product is exact there. The sum is rounded to odd (its
/// last bit is set if anything was lost, after Boldo and Melquiond 2008), so that rounding to float
/// afterwards is the only rounding that counts.
[[gnu::always_inline]] inline Register multiply_add(Register a, Register b, Register c) {
  constexpr int count = register_lanes;
  using Wide [[gnu::vector_size(count * 8)]] = double;
  using Bits [[gnu::vector_size(count * 8)]] = int64_t;
  const Wide product = __builtin_convertvector(a, Wide) * __builtin_convertvector(b, Wide),
             addend = __builtin_convertvector(c, Wide);
  const Wide sum = product + addend;
  // The error of the sum, exactly (Knuth's two-sum). NaN for infinite sums: no bit is set then.
  const Wide part = sum - product, error = (product - (sum - part)) + (addend - part);
  const Bits inexact = (error < 0.0) | (error > 0.0);
  // The exact sum is below or above `sum`: truncate toward zero, then set the last bit.
  const Bits away = inexact & ((error > 0.0) ^ (sum > 0.0));
  const Bits truncated = (Bits)sum + away;  // comparisons are 0 or -1
  return __builtin_convertvector((Wide)(truncated | (inexact & 1)), Register);
}

#endif
#endif

[[gnu::always_inline]] inline Register multiply_add(float a, Register b, Register c) {
  return multiply_add(repeated(a), b, c);
}

#endif

}  // namespace halftone::simd::HALFTONE_ISA
