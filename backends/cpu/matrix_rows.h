// The rows of a matrix as the left operand of gemm_blocking_bf16.h.
#pragma once

#include <numeric>

#include <halftone/backends/cpu/gemm_blocking_bf16.h>

namespace halftone::cpu {

/// Rows of a bf16 matrix, of which `column` or `row` is 1: in place, if tiles can be loaded from
/// there as fast as packed ones, otherwise packed.
class MatrixRows {
 public:
  using Part = panel_product::Part;
  explicit MatrixRows(const simd::Matrix& a) : a_(a) {}

  /// Returns the number of rows packed at a time: if columns are contiguous, pieces of them are
  /// read.
  int64_t group() const { return a_.column == 1 ? simd::panels::panel_width : 64; }

  simd::panels::Rows rows(const Part& x, uint16_t* buffer) const {
    const simd::Matrix source = part(a_, x.i, x.start);
    if (in_place(source, x))
      return {.data = static_cast<const uint16_t*>(source.data),
              .row = a_.row,
              .unit = simd::panels::depth_unit,
              .tile = 16 * a_.row};
    pack(x, buffer);
    return {.data = buffer};
  }
  /// Returns whether rows() would pack again for each block of columns.
  bool shares(int64_t columns) const {
    return a_.column != 1 ||
           (columns > narrow_columns && !lies_well(a_, panel_product::slice_depth));
  }
  void pack(const Part& x, uint16_t* buffer) const {
    simd::panels::pack_rows(part(a_, x.i, x.start), x.rows, x.depth, buffer);
  }
  /// Returns the memory that rows() reads.
  simd::panels::Ahead ahead(const Part& x) const {
    const auto* const data = static_cast<const std::byte*>(part(a_, x.i, x.start).data);
    constexpr int64_t size = sizeof(uint16_t);
    if (a_.column == 1)
      return {.data = data, .pieces = x.rows, .bytes = size * x.depth, .step = size * a_.row};
    return {.data = data, .pieces = x.depth, .bytes = size * x.rows, .step = size * a_.column};
  }

 private:
  /// A block of at most this width reads rows too few times for packing to save time.
  static constexpr int64_t narrow_columns = 128;

  bool in_place(const simd::Matrix& source, const Part& x) const {
    return a_.column == 1 && x.rows % 16 == 0 && x.depth % simd::panels::depth_unit == 0 &&
           (x.columns <= narrow_columns || lies_well(source, x.depth));
  }
  /// Returns whether no row begins within a line of memory, and a slice of a panel of them spreads
  /// over all sets of the first-level cache.
  static bool lies_well(const simd::Matrix& a, int64_t depth) {
    constexpr int64_t line = 64, sets = 64;  // of that cache: bytes, and lines across
    const int64_t bytes = a.row * 2;
    if (bytes % line != 0 || reinterpret_cast<uintptr_t>(a.data) % line != 0) return false;
    const int64_t slice = panel_product::slice_depth * 2 / line;
    return std::gcd(bytes / line, sets) <= std::min(slice, depth * 2 / line);
  }

  simd::Matrix a_;
};

}  // namespace halftone::cpu
