// Tensor cores for the emulated build: the part of nvcuda::wmma that backends/cuda uses. Tiles are
// 16 x 16 x 16. A lane has 8 neighbors of a row of the result, and the elements of the factors for
// them, so that a product needs no exchange. As on hardware, only whole matrices have a meaning.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

namespace nvcuda::wmma {

struct row_major;
struct col_major;
struct matrix_a;
struct matrix_b;
struct accumulator;
enum layout_t { mem_row_major, mem_col_major };

template <class Use, int m, int n, int k, class T, class Layout = void> struct fragment {
  static_assert(m == 16 && n == 16 && k == 16);
  // matrix_a: a row; matrix_b: 8 columns, one after the other; accumulator: 8 elements of a row.
  static constexpr int count = std::is_same_v<Use, matrix_a>   ? 16
                               : std::is_same_v<Use, matrix_b> ? 128
                                                               : 8;
  float values[count];
};

namespace emulated {
inline int row() { return halftone::emulation::lane() / 2; }
inline int column() { return halftone::emulation::lane() % 2 * 8; }

template <class T> float value_of(const T* at) {
  T element;
  std::memcpy(&element, at, sizeof(T));
  if constexpr (std::is_same_v<T, __half>) return __half2float(element);
  else return float(halftone::BFloat16::from_bits(element.bits));
}
/// The hardware's requirements for an address and for the distance between rows.
inline void require_aligned(const void* data, unsigned step, std::size_t element) {
  if (reinterpret_cast<std::uintptr_t>(data) % 32 != 0 || step * element % 16 != 0) std::abort();
}
}  // namespace emulated

template <class Use, class T, class Layout>
void load_matrix_sync(fragment<Use, 16, 16, 16, T, Layout>& to, const T* from, unsigned step) {
  namespace e = emulated;
  e::require_aligned(from, step, sizeof(T));
  __syncwarp();
  const auto at = [&](int row, int column) {
    const bool by_rows = std::is_same_v<Layout, row_major>;
    return e::value_of(from + (by_rows ? row * int(step) + column : column * int(step) + row));
  };
  for (int k = 0; k < 16; ++k)
    if constexpr (std::is_same_v<Use, matrix_a>) to.values[k] = at(e::row(), k);
    else
      for (int c = 0; c < 8; ++c) to.values[16 * c + k] = at(k, e::column() + c);
}

inline void fill_fragment(fragment<accumulator, 16, 16, 16, float>& to, float value) {
  for (float& v : to.values) v = value;
}

template <class T, class A, class B>
void mma_sync(fragment<accumulator, 16, 16, 16, float>& d,
              const fragment<matrix_a, 16, 16, 16, T, A>& a,
              const fragment<matrix_b, 16, 16, 16, T, B>& b,
              const fragment<accumulator, 16, 16, 16, float>& c) {
  for (int i = 0; i < 8; ++i) {
    float sum = c.values[i];
    for (int k = 0; k < 16; ++k) sum += a.values[k] * b.values[16 * i + k];
    d.values[i] = sum;
  }
}

inline void store_matrix_sync(float* to, const fragment<accumulator, 16, 16, 16, float>& from,
                              unsigned step, layout_t layout) {
  namespace e = emulated;
  e::require_aligned(to, step, sizeof(float));
  if (layout != mem_row_major) std::abort();
  for (int i = 0; i < 8; ++i) to[e::row() * int(step) + e::column() + i] = from.values[i];
  __syncwarp();
}

}  // namespace nvcuda::wmma
