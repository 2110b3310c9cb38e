// Shared parts of the SIMD sources. All definitions are in a namespace named after the instruction
// set that it is compiled for (HALFTONE_ISA comes from CMake). Define nothing else in these
// sources: the linker could keep an inline function of another namespace, compiled here for
// AVX-512, as the copy for all callers. tests/style/isa_symbols.cmake checks this.
#pragma once

#include <halftone/backends/cpu/simd/kernels.h>

#if defined(__SSE2__)
// <immintrin.h> without false warnings: some intrinsics of g++ 12 begin with a value that is
// undefined on purpose (__Y), and the compiler warns wherever they are inlined (GCC bug 105593,
// fixed in GCC 13).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#endif

namespace halftone::simd::HALFTONE_ISA {

/// Sums along a row have as many partial sums as a Vector has lanes. Portable tables have 16 lanes
/// on every instruction set, so that the order of a sum does not depend on it (docs/same_bits.md).
#ifdef HALFTONE_PORTABLE
inline constexpr int vector_bytes = 64;
#else
inline constexpr int vector_bytes = HALFTONE_VECTOR_BYTES;
#endif
inline constexpr int lanes = vector_bytes / 4;
/// The floats of one register, for loops whose sums have an order of their own.
inline constexpr int register_bytes = HALFTONE_VECTOR_BYTES;
inline constexpr int register_lanes = register_bytes / 4;
/// The number of floats that may be added one after the other before a long sum is split.
inline constexpr int64_t short_chain = 16;
using Vector [[gnu::vector_size(vector_bytes)]] = float;
using Register [[gnu::vector_size(register_bytes)]] = float;

template <class V = Vector> [[gnu::always_inline]] inline V load(const float* x) {
  V v;
  __builtin_memcpy(&v, x, sizeof v);
  return v;
}
template <class V, class T> [[gnu::always_inline]] inline void store(T* y, V v) {
  __builtin_memcpy(y, &v, sizeof v);
}

/// Returns the elements of x, or of x followed by y, at some places.
template <class V, class Places> [[gnu::always_inline]] inline V shuffled(V x, Places places) {
#if defined(__clang__)
  V result{};
  for (int k = 0; k < int(sizeof x / sizeof x[0]); ++k) result[k] = x[places[k]];
  return result;
#else
  return __builtin_shuffle(x, places);
#endif
}
template <class V, class Places> [[gnu::always_inline]] inline V shuffled(V x, V y, Places places) {
#if defined(__clang__)
  constexpr int count = int(sizeof(V) / sizeof(x[0]));
  V result{};
  for (int k = 0; k < count; ++k)
    result[k] = places[k] < count ? x[places[k]] : y[places[k] - count];
  return result;
#else
  return __builtin_shuffle(x, y, places);
#endif
}

template <int size> struct IndexOf;
template <> struct IndexOf<4> { using Type = int32_t; };
template <> struct IndexOf<8> { using Type = int64_t; };

/// Returns join(...join(x0, x1)...) over all elements of a vector, in pairs: join takes two vectors
/// element by element.
template <int distance, class V, class Join>
[[gnu::always_inline]] inline auto over_elements(V x, const Join& join) {
  using Index = typename IndexOf<sizeof(x[0])>::Type;
  using Places [[gnu::vector_size(vector_bytes)]] = Index;
  Places places;
  for (int k = 0; k < int(vector_bytes / sizeof(Index)); ++k) places[k] = k ^ distance;
  const V joined = join(x, shuffled(x, places));
  if constexpr (distance == 1) return joined[0];
  else return over_elements<distance / 2>(joined, join);
}
template <class V, class Join>
[[gnu::always_inline]] inline auto over_lanes(V x, const Join& join) {
  return over_elements<lanes / 2>(x, join);
}

/// Adds the lanes in double.
[[gnu::always_inline]] inline double sum_of_lanes(Vector x) {
  using Half [[gnu::vector_size(vector_bytes / 2)]] = float;
  using Wide [[gnu::vector_size(vector_bytes)]] = double;
  Half halves[2];
  __builtin_memcpy(halves, &x, sizeof x);
  const Wide sums =
      __builtin_convertvector(halves[0], Wide) + __builtin_convertvector(halves[1], Wide);
  return over_elements<lanes / 4>(sums, [](Wide a, Wide b) { return a + b; });
}

void fill_elementwise(Kernels& table);
void fill_reductions(Kernels& table);
void fill_rows(Kernels& table);
void fill_channels(Kernels& table);
void fill_training(Kernels& table);
void fill_gemm(Kernels& table);
#ifndef HALFTONE_PORTABLE
void fill_short_formats(Kernels& table);
void fill_images(Kernels& table);
void fill_random(Kernels& table);
void fill_quantize(Kernels& table);
#endif

// a * b + c for registers. Portable tables round it once on every instruction set; the other tables
// leave it to the compiler, which has fused instructions on AVX2 and AVX-512.

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
