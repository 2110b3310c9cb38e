// The product of two bf16 matrices, in the blocks of gemm_blocking_bf16.h.
#include <halftone/backends/cpu/matrix_rows.h>

namespace halftone::cpu {

namespace {
/// The stride of a dimension of size 1 is arbitrary, so such a matrix may have no unit stride.
simd::Matrix with_unit_stride(simd::Matrix x, int64_t rows, int64_t columns) {
  if (columns == 1) x.column = 1;
  else if (rows == 1 && x.column != 1) x.row = 1;
  return x;
}
}  // namespace

void bf16_gemm(const simd::Matrix& a, const simd::Matrix& b_in, int64_t m, int64_t n, int64_t k,
               const Bf16Product& to) {
  const simd::Matrix b = with_unit_stride(b_in, k, n);
  bf16_product(m, n, k, to, MatrixRows(with_unit_stride(a, m, k)),
               [&](const panel_product::Part& x, uint16_t* panels) {
                 simd::panels::pack_columns(part(b, x.start, x.j), x.depth, x.columns, panels);
               });
}

}  // namespace halftone::cpu
