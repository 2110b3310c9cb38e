// The product of two bf16 matrices, in the blocks of bf16_product.h.
#include <halftone/backends/cpu/bf16_product.h>

#include <numeric>

namespace halftone::cpu {

namespace {
// Rows packed at a time where the columns of a lie in memory: what is read are pieces of them.
constexpr int64_t group_rows = 64;
// A block so narrow reads a too few times for packing to pay.
constexpr int64_t narrow_columns = 128;
constexpr int64_t line = 64, sets = 64;  // of the first-level cache: bytes, and lines across

/// Whether tiles are loaded from where rows lie at the speed of packed ones: no row begins within a
/// line of memory, and a slice of a panel of them spreads over all sets of the first-level cache.
bool lies_well(const simd::Matrix& a, int64_t depth) {
  const int64_t bytes = a.row * 2;
  if (bytes % line != 0 || reinterpret_cast<uintptr_t>(a.data) % line != 0) return false;
  const int64_t slice = panel_product::slice_depth * 2 / line;
  return std::gcd(bytes / line, sets) <= std::min(slice, depth * 2 / line);
}

/// The stride of a dimension of one element says nothing: such a matrix may have no unit stride.
simd::Matrix with_unit_stride(simd::Matrix x, int64_t rows, int64_t columns) {
  if (columns == 1) x.column = 1;
  else if (rows == 1 && x.column != 1) x.row = 1;
  return x;
}

}  // namespace

void bf16_gemm(const simd::Matrix& a_in, const simd::Matrix& b_in, int64_t m, int64_t n, int64_t k,
               const Bf16Product& to) {
  const simd::Matrix a = with_unit_stride(a_in, m, k), b = with_unit_stride(b_in, k, n);
  using Part = panel_product::Part;
  const auto rows_of = [&](const Part& x, uint16_t* buffer) -> simd::panels::Rows {
    const simd::Matrix source = part(a, x.i, x.start);
    const bool in_place = a.column == 1 && x.rows % 16 == 0 &&
                          x.depth % simd::panels::depth_unit == 0 &&
                          (x.columns <= narrow_columns || lies_well(source, x.depth));
    if (in_place)
      return {.data = static_cast<const uint16_t*>(source.data),
              .row = a.row,
              .unit = simd::panels::depth_unit,
              .tile = 16 * a.row};
    simd::panels::pack_rows(source, x.rows, x.depth, buffer);
    return {.data = buffer};
  };
  bf16_product(m, n, k, a.column == 1 ? simd::panels::panel_width : group_rows, to, rows_of,
               [&](const Part& x, uint16_t* panels) {
                 simd::panels::pack_columns(part(b, x.start, x.j), x.depth, x.columns, panels);
               });
}

}  // namespace halftone::cpu
