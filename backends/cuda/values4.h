// Four neighboring elements of a tensor whose dtype is looked up once for all four, so that kernels
// that mix dtypes can read and write 8 or 16 bytes at a time.
#pragma once

#include <bit>

#include <halftone/backends/cuda/values.h>

namespace halftone::cuda {

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
