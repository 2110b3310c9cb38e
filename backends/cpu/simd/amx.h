// The inner part of the bf16 matrix product on AMX; cpu/amx_gemm.cpp drives it. Operands are
// packed into panels of 32 rows of a or 32 columns of b, [depth / 32][2 tiles][16][32], zeros
// behind their edges. Only call it where cpu/isa.h says use_amx().
#pragma once

#include <halftone/backends/cpu/simd/kernels.h>

namespace halftone::simd::amx {

inline constexpr int64_t panel_width = 32, depth_unit = 32;

/// Panels of `rows` or `columns`, the last one incomplete. A tile without any of them is left as it
/// is.
void pack_rows(const Matrix& a, int64_t rows, int64_t depth, uint16_t* panels);
void pack_columns(const Matrix& b, int64_t depth, int64_t columns, uint16_t* panels);

/// Where a product goes, and what is added to it.
struct Target {
  void* c;
  bool bf16;  // else f32
  int64_t stride, rows, columns;
  const float* bias;     // [columns], or null
  const float* partial;  // the sums over lesser depths (may be c), or null
  int64_t partial_stride;
};

/// 32 rows of a: a packed panel, or where they lie. The steps between rows, depth units and tiles.
struct Rows {
  const uint16_t* data;
  int64_t row = depth_unit, unit = panel_width * depth_unit, tile = panel_width / 2 * depth_unit;
};

/// Products of panels on the calling thread. While one is computed, the results of the one before
/// are rounded and stored: c is complete when this object is gone. It lives within one function,
/// for tiles are registers of the thread, and other libraries shape them as well.
class Products {
 public:
  Products();
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;
  void multiply(int64_t depth_units, const Rows& a, const uint16_t* b, const Target& to);

 private:
  alignas(64) float sums_[2][panel_width * panel_width];
  int current_ = 0;
  Target before_{};
};

}  // namespace halftone::simd::amx
