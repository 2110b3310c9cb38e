// Elements between memory and registers: short floats are widened when they are read and rounded
// when they are written; 16 bytes move at a time if the layout allows it.
#pragma once

#include <bit>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <halftone/core/tensor.h>

namespace halftone::cuda {

/// Returns the value in the type that kernels compute in: f32 for short floats.
template <class T> __device__ __forceinline__ compute_t<T> widen(T x) {
  if constexpr (std::is_same_v<T, Float16>) return __half2float(__ushort_as_half(x.bits));
  else return compute_t<T>(x);
}
/// Rounds to the storage type, nearest even, with one instruction; a NaN loses its payload and
/// sign.
template <class T> __device__ __forceinline__ T narrow(compute_t<T> value) {
  if constexpr (std::is_same_v<T, Float16>) {
    Float16 y;
    y.bits = __half_as_ushort(__float2half_rn(value));
    return y;
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    BFloat16 y;
    y.bits = __bfloat16_as_ushort(__float2bfloat16_rn(value));
    return y;
  } else {
    return T(value);
  }
}

template <class T>
inline constexpr bool is_short_float = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;

/// convert() in a kernel: the same values, with the instructions for 16-bit floats.
template <class To, class From> __device__ __forceinline__ To cast_to(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (!std::is_arithmetic_v<From>) {
    return cast_to<To>(widen(value));
  } else if constexpr (is_short_float<To>) {
    if constexpr (std::is_same_v<From, float> || sizeof(From) < 4) return narrow<To>(float(value));
    else return narrow<To>(round_to_odd(double(value)));
  } else {
    return convert<To>(value);
  }
}

/// Calls visitor.operator()<T>() for a dtype that kernels compute from: f64, f32, f16, bf16.
/// Callers check that others do not occur.
template <class Visitor> __device__ void visit_computed(DType dtype, Visitor&& visitor) {
  switch (dtype) {
    case f64: return visitor.template operator()<double>();
    case f32: return visitor.template operator()<float>();
    case f16: return visitor.template operator()<Float16>();
    case bf16: return visitor.template operator()<BFloat16>();
    default: return;
  }
}

/// Neighboring elements that are read or written together.
template <class T, int N = int(16 / sizeof(T))> struct alignas(sizeof(T) * N) Pack {
  static constexpr int size = N;
  T values[N];
};
template <class T> inline constexpr int pack_size = int(16 / sizeof(T));

template <class T> bool is_aligned(const T* data) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0;
}
/// Returns whether packs of a dense tensor can be read from its beginning.
inline bool begins_aligned(const Tensor& x) { return is_aligned(x.raw_data()); }

/// A tensor whose dtype is looked up for each element, for rare layouts and mixtures.
struct Operand {
  void* data = nullptr;  // null: no tensor
  DType dtype = f32;

  Operand() = default;
  explicit Operand(const Tensor& x)
      : data(x.defined() ? x.raw_data() : nullptr), dtype(x.defined() ? x.dtype() : f32) {}
};

/// Returns element i, converted like cast().
template <class C> __device__ C load_as(const Operand& x, int64_t i) {
  C value{};
  visit_any(x.dtype, [&]<class T>() { value = cast_to<C>(static_cast<const T*>(x.data)[i]); });
  return value;
}
template <class C> __device__ void store_as(const Operand& y, int64_t i, C value) {
  visit_any(y.dtype, [&]<class T>() { static_cast<T*>(y.data)[i] = cast_to<T>(value); });
}
/// Returns element i of a tensor of f64, f32, f16 or bf16 (null: 0), for data that is read or
/// written once.
template <class C> __device__ C load_floating(const Operand& x, int64_t i) {
  C value(0);
  if (x.data)
    visit_computed(x.dtype, [&]<class T>() { value = C(widen(static_cast<const T*>(x.data)[i])); });
  return value;
}
template <class C> __device__ void store_floating(const Operand& y, int64_t i, C value) {
  visit_computed(y.dtype,
                 [&]<class T>() { static_cast<T*>(y.data)[i] = narrow<T>(compute_t<T>(value)); });
}

// Four neighboring elements of a tensor whose dtype is looked up once for all four, so that kernels
// that mix dtypes can read and write 8 or 16 bytes at a time.

/// Returns whether four elements from any multiple of four on can be read together.
inline bool begins_aligned4(const Tensor& x) {
  return reinterpret_cast<uintptr_t>(x.raw_data()) % std::size_t(4 * size_of(x.dtype())) == 0;
}

/// Loads values = x[i .. i + n), n from 1 to 4; the others are 0. i is a multiple of 4.
template <class C>
__device__ void load4(const Operand& x, int64_t i, int n, bool aligned, C (&values)[4]) {
  visit_computed(x.dtype, [&]<class T>() {
    Pack<T, 4> in{};
    const T* const from = static_cast<const T*>(x.data) + i;
    if (aligned && n == 4) in = *reinterpret_cast<const Pack<T, 4>*>(from);
    else
      for (int k = 0; k < 4; ++k)
        if (k < n) in.values[k] = from[k];
    for (int k = 0; k < 4; ++k) values[k] = C(widen(in.values[k]));
  });
}
/// Stores a pack at an aligned address of global memory, by one instruction. In kernels that look
/// up dtypes, nvcc 13.0 splits the assignment of a pack into one store for each element.
template <class T> __device__ void store_pack(T* to, const Pack<T, 4>& pack) {
#ifdef __CUDA_ARCH__
  const std::size_t at = __cvta_generic_to_global(to);
  if constexpr (sizeof(pack) == 16) {
    const auto words = std::bit_cast<uint4>(pack);
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(words.x), "r"(words.y),
                 "r"(words.z), "r"(words.w)
                 : "memory");
    return;
  }
  if constexpr (sizeof(pack) == 8) {
    const auto words = std::bit_cast<uint2>(pack);
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(at), "r"(words.x), "r"(words.y)
                 : "memory");
    return;
  }
#endif
  *reinterpret_cast<Pack<T, 4>*>(to) = pack;
}
/// Stores x[i .. i + n) = values, rounded once.
template <class C>
__device__ void store4(const Operand& x, int64_t i, int n, bool aligned, const C (&values)[4]) {
  visit_computed(x.dtype, [&]<class T>() {
    Pack<T, 4> out;
    for (int k = 0; k < 4; ++k) out.values[k] = cast_to<T>(values[k]);
    T* const to = static_cast<T*>(x.data) + i;
    if (aligned && n == 4) store_pack(to, out);
    else
      for (int k = 0; k < 4; ++k)
        if (k < n) to[k] = out.values[k];
  });
}

}  // namespace halftone::cuda
