// Operands of bf16 matrix products, packed, and their product on AVX512-BF16; amx.h has the one on
// AMX, backends/cpu/bf16_gemm.cpp drives either. A panel is 32 rows of a or 32 columns of b,
// [depth / 32][2 tiles][16][32], zeros after its edges: of a tile of a each row is a row of the
// matrix, of a tile of b a pair of depths, 16 columns wide. Only use it where backends/cpu/isa.h
// says has_bf16_products().
#pragma once

#include <halftone/backends/cpu/simd/kernels.h>

namespace halftone::simd::panels {

inline constexpr int64_t panel_width = 32, depth_unit = 32, tile_elements = 16 * 32;

/// Panels of `rows` or `columns`, the last one incomplete. A tile without any of them is left as it
/// is.
void pack_rows(const Matrix& a, int64_t rows, int64_t depth, uint16_t* panels);
void pack_columns(const Matrix& b, int64_t depth, int64_t columns, uint16_t* panels);

/// 32 pixels of images: the element where each begins, and its row and column (out of every image:
/// there is none).
struct Places {
  alignas(64) int64_t offset[panel_width];
  alignas(64) int32_t row[panel_width], column[panel_width];
};
/// rows[i]: where the pixel (row, column) away from place i lies, null outside of the image, which
/// has `height` rows and `width` columns of `pixel` elements.
void find_rows(const Places& places, const uint16_t* source, int64_t row, int64_t column,
               int64_t height, int64_t width, int64_t pixel, const uint16_t** rows);
/// One depth unit of a panel of columns, whose 32 depths lie in pieces of memory: 32 columns of
/// each from `rows[i]` + offset on (null: zeros).
void pack_pairs(const uint16_t* const* rows, int64_t offset, uint16_t* tiles);
/// One depth unit of a panel of rows from pieces of memory: of each row `count` of its 32 depths,
/// from row `rows[i]` + offset (null: zeros) to row i of `to`.
void copy_rows(const uint16_t* const* rows, int64_t number, int64_t offset, int64_t count,
               uint16_t* to);

/// Where a product goes, and what is added to it.
struct Target {
  void* c;
  bool bf16;  // else f32
  int64_t stride, rows, columns;
  const float* bias = nullptr;   // [columns], or null
  bool accumulate = false;       // c, in f32, holds the sums over lesser depths
  const float* begun = nullptr;  // [32][32] sums that this product goes on with, or null
  bool near = false;  // c stays in the core's caches: it need not wait for the next product
};

/// 32 rows of a: a packed panel, or where they lie. The steps between rows, depth units and tiles.
struct Rows {
  const uint16_t* data;
  int64_t row = depth_unit, unit = panel_width * depth_unit, tile = panel_width / 2 * depth_unit;
};

/// Memory that will be read: `pieces` of `bytes`, `step` bytes from one to the next.
struct Ahead {
  const std::byte* data = nullptr;
  int64_t pieces = 0, bytes = 0, step = 0;
};

/// Products of panels on the calling thread, by AVX512-BF16: sums of pairs of products, as
/// subnormal factors and results count as zero there.
class Products {
 public:
  /// c = a b for the first `depth` depths. Of a, whole tiles are read.
  void multiply(int64_t depth, const Rows& a, const uint16_t* b, const Target& to);
  /// Nothing: loads and products of whole vectors overlap by themselves.
  void fetch(const Ahead& /*ahead*/, int64_t /*units*/) {}
};

}  // namespace halftone::simd::panels
