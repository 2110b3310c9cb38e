// The inner part of the matrix product, after Goto and van de Geijn (2008), "Anatomy of high-performance matrix
// multiplication": operands are packed into panels (widening short floats on the way), and a tile of c is kept in
// registers while the depth runs.  a panel: [depth][tile_rows], b panel: [depth][tile_columns].
#include <halftone/backends/cpu/simd/local.h>

namespace halftone::simd::HALFTONE_ISA {

static constexpr int tile_rows = HALFTONE_TILE_ROWS, tile_vectors = HALFTONE_TILE_VECTORS;
static constexpr int tile_columns = tile_vectors * lanes;

template <Element E>
[[gnu::always_inline]] static inline float element(const void* data, int64_t i) {
  if constexpr (E == Element::f32) {
    return static_cast<const float*>(data)[i];
  } else {
    return __builtin_bit_cast(float, uint32_t(static_cast<const uint16_t*>(data)[i]) << 16);
  }
}

/// panels[(o / width)][d][o % width] = source(outer o, depth d), zero beyond `outer`.
template <int Width, Element E>
static void pack(const void* data, int64_t outer_stride, int64_t depth_stride, int64_t outer, int64_t depth,
                 float* panels) {
  for (int64_t o = 0; o < outer; o += Width, panels += depth * Width) {
    const int64_t width = outer - o < Width ? outer - o : Width;
    if (width < Width) __builtin_memset(panels, 0, std::size_t(depth * Width) * sizeof(float));
    if (outer_stride == 1) {  // neighbours lie together: copy rows of the panel
      for (int64_t d = 0; d < depth; ++d) {
        const int64_t from = d * depth_stride + o;
        float* to = panels + d * Width;
        if (width == Width) {
          for (int k = 0; k < Width; ++k) to[k] = element<E>(data, from + k);
        } else {
          for (int64_t k = 0; k < width; ++k) to[k] = element<E>(data, from + k);
        }
      }
      continue;
    }
    constexpr int64_t strip = 16;  // the depth lies together: transpose strip by strip
    for (int64_t d0 = 0; d0 < depth; d0 += strip) {
      const int64_t d1 = d0 + strip < depth ? d0 + strip : depth;
      for (int64_t k = 0; k < width; ++k) {
        const int64_t from = (o + k) * outer_stride;
        for (int64_t d = d0; d < d1; ++d) panels[d * Width + k] = element<E>(data, from + d * depth_stride);
      }
    }
  }
}

template <int Width>
static void pack_any(const Matrix& x, int64_t outer_stride, int64_t depth_stride, int64_t outer, int64_t depth,
                     float* panels) {
  switch (x.element) {
    case Element::f32: return pack<Width, Element::f32>(x.data, outer_stride, depth_stride, outer, depth, panels);
    case Element::bf16: return pack<Width, Element::bf16>(x.data, outer_stride, depth_stride, outer, depth, panels);
  }
}

static void pack_rows(const Matrix& a, int64_t rows, int64_t depth, float* panels) {
  pack_any<tile_rows>(a, a.row, a.column, rows, depth, panels);
}
static void pack_columns(const Matrix& b, int64_t depth, int64_t columns, float* panels) {
  pack_any<tile_columns>(b, b.column, b.row, columns, depth, panels);
}

/// c[rows, tile_columns] (+)= a b for a full width; Rows accumulators of tile_vectors vectors stay in registers.
template <int Rows>
[[gnu::always_inline]] static inline void product(int64_t depth, const float* a, const float* b, const float* bias,
                                                  bool accumulate, float* c, int64_t c_stride) {
  Vector sums[Rows][tile_vectors];
#pragma GCC unroll 32
  for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < tile_vectors; ++j) sums[i][j] = Vector{};
  for (int64_t d = 0; d < depth; ++d) {
    Vector columns[tile_vectors];
#pragma GCC unroll 8
    for (int j = 0; j < tile_vectors; ++j) columns[j] = load(b + d * tile_columns + j * lanes);
#pragma GCC unroll 32
    for (int i = 0; i < Rows; ++i) {
      const float row = a[d * tile_rows + i];
#pragma GCC unroll 8
      for (int j = 0; j < tile_vectors; ++j) sums[i][j] += row * columns[j];
    }
  }
#pragma GCC unroll 32
  for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < tile_vectors; ++j) {
      float* to = c + i * c_stride + j * lanes;
      Vector sum = sums[i][j];
      if (accumulate) sum += load(to);
      if (bias) sum += load(bias + j * lanes);
      store(to, sum);
    }
}

static void tile_product(int64_t depth, const float* a, const float* b, int64_t rows, int64_t columns,
                         const float* bias, bool accumulate, float* c, int64_t c_stride) {
  if (rows == tile_rows && columns == tile_columns)
    return product<tile_rows>(depth, a, b, bias, accumulate, c, c_stride);
  float whole[tile_rows * tile_columns];
  if (rows <= 4) product<4>(depth, a, b, nullptr, false, whole, tile_columns);
  else product<tile_rows>(depth, a, b, nullptr, false, whole, tile_columns);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) {
      float* to = c + i * c_stride + j;
      *to = whole[i * tile_columns + j] + (accumulate ? *to : 0.0f) + (bias ? bias[j] : 0.0f);
    }
}

void fill_gemm(Kernels& table) {
  table.tile_rows = tile_rows, table.tile_columns = tile_columns;
  table.pack_rows = pack_rows, table.pack_columns = pack_columns, table.tile_product = tile_product;
}

}  // namespace halftone::simd::HALFTONE_ISA
