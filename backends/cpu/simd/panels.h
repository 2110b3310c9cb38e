// Packed operands of bf16 matrix products, and their products on AVX512-BF16 (panels.cpp) and on
// AMX (amx.cpp); backends/cpu/gemm.cpp uses either. A panel is 32 rows of a or 32 columns of b,
// [depth / 32][2 tiles][16][32], with zeros after its edges. Each row of a tile of a is a row of
// the matrix; each row of a tile of b is a pair of depths, 16 columns wide. Use it only if
// has_bf16_products() of backends/cpu/staging.h is true.
#pragma once

#include <halftone/backends/cpu/simd/kernels.h>

namespace halftone::simd::panels {

inline constexpr int64_t panel_width = 32, depth_unit = 32, tile_elements = 16 * 32;

/// Packs panels of `rows` or `columns`; the last one may be incomplete. A tile without any of them
/// is not written.
void pack_rows(const Matrix& a, int64_t rows, int64_t depth, uint16_t* panels);
void pack_columns(const Matrix& b, int64_t depth, int64_t columns, uint16_t* panels);

/// 32 pixels of images: the element at which each begins, and its row and column (outside of every
/// image for a missing pixel).
struct Places {
  alignas(64) int64_t offset[panel_width];
  alignas(64) int32_t row[panel_width], column[panel_width];
};
/// Sets rows[i] to the pixel (row, column) away from place i, null outside of the image, which has
/// `height` rows and `width` columns of `pixel` elements.
void find_rows(const Places& places, const uint16_t* source, int64_t row, int64_t column,
               int64_t height, int64_t width, int64_t pixel, const uint16_t** rows);
/// Packs one depth unit of a panel of columns, whose 32 depths are in separate pieces of memory: 32
/// columns of each, from `rows[i]` + offset on (null: zeros).
void pack_pairs(const uint16_t* const* rows, int64_t offset, uint16_t* tiles);
/// Copies one depth unit of a panel of rows from pieces of memory: `count` of the 32 depths of each
/// row, from `rows[i]` + offset (null: zeros) to row i of `to`.
void copy_rows(const uint16_t* const* rows, int64_t number, int64_t offset, int64_t count,
               uint16_t* to);

/// The destination of a product, and what is added to it.
struct Target {
  void* c;
  bool bf16;  // false: f32
  int64_t stride, rows, columns;
  const float* bias = nullptr;   // [columns], or null
  bool accumulate = false;       // c, in f32, holds the sums over lesser depths
  const float* begun = nullptr;  // [32][32] sums to which this product is added, or null
  bool near = false;  // c stays in the core's caches: its store need not wait for the next product
};

/// 32 rows of a: a packed panel, or in place. The steps between rows, depth units and tiles.
struct Rows {
  const uint16_t* data;
  int64_t row = depth_unit, unit = panel_width * depth_unit, tile = panel_width / 2 * depth_unit;
};

/// Memory that will be read: `pieces` of `bytes`, `step` bytes from one to the next.
struct Ahead {
  const std::byte* data = nullptr;
  int64_t pieces = 0, bytes = 0, step = 0;
};

/// Products of panels on the calling thread, with AVX512-BF16: sums of pairs of products; the
/// instruction treats subnormal factors and results as zero.
class Products {
 public:
  /// Computes c = a b for the first `depth` depths. Reads whole tiles of a.
  void multiply(int64_t depth, const Rows& a, const uint16_t* b, const Target& to);
  /// Does nothing: loads and products of whole vectors overlap by themselves.
  void fetch(const Ahead& /*ahead*/, int64_t /*units*/) {}
};

}  // namespace halftone::simd::panels

// The inner part of the bf16 matrix product on AMX, on these panels. Use it only if
// use_amx() of backends/cpu/staging.h is true.

namespace halftone::simd::amx {

/// Like panels::Products. While a product is computed, the results of the one before are rounded
/// and stored: c is complete when this object is destroyed. Use it within one function, because
/// tiles are registers of the thread that other libraries also configure.
class Products {
 public:
  Products();
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;
  void multiply(int64_t depth, const panels::Rows& a, const uint16_t* b, const panels::Target& to);
  /// Brings this memory into the second-level cache, spread over the next `units` depth units.
  void fetch(const panels::Ahead& ahead, int64_t units);

 private:
  /// Two by two tiles of sums; `stride` is the distance of rows.
  template <class T> struct Block {
    T* data;
    int64_t stride = panels::panel_width;

    T* tile(int64_t below, int64_t right) const { return data + 16 * (below * stride + right); }
    int64_t row_bytes() const { return stride * int64_t(sizeof(T)); }
  };
  template <bool two_rows, bool two_columns>
  void multiply_tiles(int64_t depth_units, const panels::Rows& rows, const uint16_t* b,
                      const panels::Target& to, const Block<const float>& begun,
                      const Block<float>& sums);
  void store_rows(int64_t count);
  void fetch_lines();

  /// The present product leaves its sums in one half; the other half is being stored.
  alignas(64) float sums_[2][panels::panel_width * panels::panel_width];
  int current_ = 0;
  panels::Target waiting_{.c = nullptr, .bf16 = false, .stride = 0, .rows = 0, .columns = 0};
  int64_t stored_ = 0;                               // rows of it
  panels::Ahead ahead_;                              // still to be fetched
  int64_t ahead_at_ = 0, ahead_lines_per_unit_ = 0;  // lines of its first piece that were fetched
};

}  // namespace halftone::simd::amx
