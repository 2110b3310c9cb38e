// Products of small blocks on the calling thread, for kernels that consist of many: operands are
// packed once and multiplied as often as needed. The classes have one interface, so that a kernel
// is written once as a template: FloatBlocks computes in f32 from f32 or bf16, DotBlocks and
// AmxBlocks from bf16 on AVX512-BF16 and on AMX; all add up in f32.
#pragma once

#include <type_traits>

#include <halftone/backends/cpu/simd/amx.h>
#include <halftone/backends/cpu/staging.h>
#include <halftone/core/device.h>

namespace halftone::cpu {

/// Computes c = a b, or c += a b, for c [m, n]. Uses the first k rows of b, of which `packed_depth`
/// were packed.
struct BlockProduct {
  int64_t m, n, k, packed_depth;
  float* c;
  int64_t stride;  // between rows of c
  bool accumulate = false;
  int64_t chain = k;  // products that are added up in a row (in f32; bf16 has its own order)
};

class FloatBlocks {
 public:
  using Packed = float;
  /// The type of computed operands before they are packed.
  using Value = float;
  static constexpr simd::Element element = simd::Element::f32;

  /// Good sizes of blocks; blocks of columns begin at multiples of column_unit().
  static int64_t block_rows() {
    if (portable_bits()) return 84;  // whole tiles on every instruction set
    return 112 / simd_kernels().tile_rows * simd_kernels().tile_rows;
  }
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

/// Products: of simd/panels.h or simd/amx.h.
template <class Products> class Bf16Blocks {
 public:
  using Packed = uint16_t;
  using Value = uint16_t;
  static constexpr simd::Element element = simd::Element::bf16;

  /// Tiles need many rows for each panel that they load. Without tiles, small blocks skip more of
  /// the part that causality masks.
  static int64_t block_rows() { return std::is_same_v<Products, simd::amx::Products> ? 128 : 64; }
  static int64_t block_columns() { return 256; }
  static int64_t column_unit() { return simd::panels::panel_width; }
  static int64_t packed_rows(int64_t rows, int64_t depth) { return panels(rows) * units(depth); }
  static int64_t packed_columns(int64_t depth, int64_t columns) {
    return panels(columns) * units(depth);
  }
  static void pack_rows(const simd::Matrix& a, int64_t rows, int64_t depth, uint16_t* to) {
    simd::panels::pack_rows(a, rows, depth, to);
  }
  static void pack_columns(const simd::Matrix& b, int64_t depth, int64_t columns, uint16_t* to) {
    simd::panels::pack_columns(b, depth, columns, to);
  }
  /// Converts floats to operands.
  static void store(const float* x, int64_t n, uint16_t* to) {
    simd_kernels().narrow_bf16(x, to, n);
  }
  static void multiply(const uint16_t* a, const uint16_t* b, const BlockProduct& to);

 private:
  static int64_t panels(int64_t x) {
    return reference::pieces_of(x, simd::panels::panel_width) * simd::panels::panel_width;
  }
  static int64_t units(int64_t depth) {
    return reference::pieces_of(depth, simd::panels::depth_unit) * simd::panels::depth_unit;
  }
};
using DotBlocks = Bf16Blocks<simd::panels::Products>;
using AmxBlocks = Bf16Blocks<simd::amx::Products>;

}  // namespace halftone::cpu
