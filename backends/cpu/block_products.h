// Products of small blocks on the calling thread, for kernels that are made of many: operands are
// packed once and multiplied as often as needed. Two classes of one form, so that a
// kernel is written once as a template: FloatBlocks computes in f32 from f32 or bf16, AmxBlocks
// from bf16 on AMX; both add up in f32.
#pragma once

#include <halftone/backends/cpu/simd/amx.h>
#include <halftone/backends/cpu/staging.h>

namespace halftone::cpu {

/// c = a b, or c += a b, for c [m, n]. Of b the first k rows are meant of `packed_depth` that were
/// packed.
struct BlockProduct {
  int64_t m, n, k, packed_depth;
  float* c;
  int64_t stride;  // between rows of c
  bool accumulate = false;
  int64_t chain = k;  // so many products are added up in a row (in f32; AMX has its own ways)
};

class FloatBlocks {
 public:
  using Packed = float;
  /// What computed operands are stored as before they are packed.
  using Value = float;
  static constexpr simd::Element element = simd::Element::f32;

  /// How large blocks are good; blocks of columns begin at multiples of column_unit().
  static int64_t block_rows() { return 112 / simd_kernels().tile_rows * simd_kernels().tile_rows; }
  static int64_t block_columns() { return 256 / column_unit() * column_unit(); }
  static int64_t column_unit() { return simd_kernels().tile_columns; }
  static int64_t packed_rows(int64_t rows, int64_t depth) {
    return round_up(rows, simd_kernels().tile_rows) * depth;
  }
  static int64_t packed_columns(int64_t depth, int64_t columns) {
    return round_up(columns, column_unit()) * depth;
  }
  static void pack_rows(const simd::Matrix& a, int64_t rows, int64_t depth, float* to) {
    simd_kernels().pack_rows(a, rows, depth, to);
  }
  static void pack_columns(const simd::Matrix& b, int64_t depth, int64_t columns, float* to) {
    simd_kernels().pack_columns(b, depth, columns, to);
  }
  static void multiply(const float* a, const float* b, const BlockProduct& to);

 private:
  static int64_t round_up(int64_t x, int64_t unit) { return (x + unit - 1) / unit * unit; }
};

class AmxBlocks {
 public:
  using Packed = uint16_t;
  using Value = uint16_t;
  static constexpr simd::Element element = simd::Element::bf16;

  static int64_t block_rows() { return 128; }
  static int64_t block_columns() { return 256; }
  static int64_t column_unit() { return simd::amx::panel_width; }
  static int64_t packed_rows(int64_t rows, int64_t depth) { return panels(rows) * units(depth); }
  static int64_t packed_columns(int64_t depth, int64_t columns) {
    return panels(columns) * units(depth);
  }
  static void pack_rows(const simd::Matrix& a, int64_t rows, int64_t depth, uint16_t* to) {
    simd::amx::pack_rows(a, rows, depth, to);
  }
  static void pack_columns(const simd::Matrix& b, int64_t depth, int64_t columns, uint16_t* to) {
    simd::amx::pack_columns(b, depth, columns, to);
  }
  /// Floats as operands.
  static void store(const float* x, int64_t n, uint16_t* to) {
    simd_kernels().narrow_bf16(x, to, n);
  }
  static void multiply(const uint16_t* a, const uint16_t* b, const BlockProduct& to);

 private:
  static int64_t panels(int64_t x) {
    return reference::pieces_of(x, simd::amx::panel_width) * simd::amx::panel_width;
  }
  static int64_t units(int64_t depth) {
    return reference::pieces_of(depth, simd::amx::depth_unit) * simd::amx::depth_unit;
  }
};

}  // namespace halftone::cpu
