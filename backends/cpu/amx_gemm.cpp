// Blocking and threading of the bf16 product on AMX. A thread packs a block of columns of b into
// its second-level cache and takes the rows of a in small groups; what it adds up between slices of
// the depth stays near the first-level cache. Threads share nothing: where two need the same
// operand, both pack it, and the cut of c keeps that little. An element of c is summed in the same
// order whatever the cut, so the result does not depend on the number of threads.
#include <halftone/backends/cpu/gemm.h>

#include <algorithm>

#include <omp.h>

#include <halftone/backends/cpu/product_pieces.h>
#include <halftone/backends/cpu/simd/amx.h>
#include <halftone/backends/cpu/staging.h>

namespace halftone::cpu {

namespace {
using reference::pieces_of;
using simd::amx::depth_unit;
using simd::amx::panel_width;

constexpr int64_t block_elements = 5 << 17;  // of b, packed: they fill the second-level cache
constexpr int64_t most_columns = 512;        // of such a block
constexpr int64_t amx_slice_depth = 640;  // a panel of a, so deep, stays in the first-level cache
// c in f32 holds sums between chunks of the depth. Small chunks make wide blocks, and a is packed
// once per block. c in bf16 cannot hold them, so only the caller's staging makes chunks there.
constexpr int64_t f32_chunk = 1024;
// Rows packed at a time where the columns of a lie in memory: what is read are pieces of them.
constexpr int64_t group_rows = 64;
// A block so narrow reads a too few times for packing to pay.
constexpr int64_t narrow_columns = 128;
constexpr int64_t small_amx_product = 1 << 20;  // multiply-adds below which threads do not pay

/// The stride of a dimension of one element says nothing: such a matrix may have no unit stride.
simd::Matrix with_unit_stride(simd::Matrix x, int64_t rows, int64_t columns) {
  if (columns == 1) x.column = 1;
  else if (rows == 1 && x.column != 1) x.row = 1;
  return x;
}

/// How c is cut into blocks of panels, and the depth into chunks of slices.
struct Cut {
  int64_t row_panels, column_panels, chunk, slice;
  int64_t row_blocks = 1, column_blocks = 1;

  Cut(int64_t m, int64_t n, int64_t k, bool bf16, int64_t threads)
      : row_panels(pieces_of(m, panel_width)),
        column_panels(pieces_of(n, panel_width)),
        chunk(even_piece(k, bf16 ? amx_depth : f32_chunk, depth_unit)),
        slice(even_piece(chunk, amx_slice_depth, depth_unit)) {
    const int64_t most = std::min(most_columns, block_elements / chunk) / panel_width;
    const int64_t least = pieces_of(column_panels, most);
    int64_t best_cost = 0;
    for (int64_t rows = 1; rows <= std::min(threads, row_panels); ++rows) {
      const int64_t across = pieces_of(threads, rows);
      const int64_t columns = std::min(column_panels, pieces_of(least, across) * across);
      const int64_t cost = cost_of(rows, columns, threads);
      if (best_cost != 0 && cost >= best_cost) continue;
      best_cost = cost, row_blocks = rows, column_blocks = columns;
    }
  }

  /// The work of the busiest thread. To pack a panel costs about as much as two products of panels.
  int64_t cost_of(int64_t rows, int64_t columns, int64_t threads) const {
    constexpr int64_t packing = 2;
    const int64_t tasks = pieces_of(rows * columns, threads);
    const int64_t height = pieces_of(row_panels, rows), width = pieces_of(column_panels, columns);
    return tasks * height * (width + packing) + packing * pieces_of(tasks, rows) * width;
  }
};

/// Rows from i and columns from j of c, and the chunk of the depth that is added to them.
struct Part {
  int64_t i, rows, j, columns, start, depth;
  bool last;
};

/// What one thread works with.
class Worker {
 public:
  Worker(const simd::Matrix& a, const simd::Matrix& b, const AmxProduct& to, const Cut& cut,
         int64_t columns)
      : a_(a),
        b_(b),
        to_(to),
        slice_(cut.slice),
        columns_(columns),
        group_(a.column == 1 ? panel_width : group_rows),
        a_panels_(group_ * cut.chunk),
        b_panels_(columns * cut.chunk),
        sums_(cut.slice < cut.chunk ? group_ * columns : 0) {}

  void pack_columns(const Part& x) {
    simd::amx::pack_columns(part(b_, x.start, x.j), x.depth, x.columns, b_panels_.data());
  }
  /// By the columns packed before.
  void multiply(const Part& x) {
    const bool in_place = a_.column == 1 && x.columns <= narrow_columns && x.rows % 16 == 0 &&
                          x.depth % depth_unit == 0;
    for (Part group = x; group.i < x.i + x.rows; group.i += group_) {
      group.rows = std::min(group_, x.i + x.rows - group.i);
      const simd::Matrix source = part(a_, group.i, x.start);
      if (in_place) {
        multiply_group(group, {.data = static_cast<const uint16_t*>(source.data),
                               .row = a_.row,
                               .unit = depth_unit,
                               .tile = 16 * a_.row});
      } else {
        simd::amx::pack_rows(source, group.rows, x.depth, a_panels_.data());
        multiply_group(group, {.data = a_panels_.data()});
      }
    }
  }

 private:
  void multiply_group(const Part& x, simd::amx::Rows rows) {
    const uint16_t* a = rows.data;
    const int64_t units = pieces_of(x.depth, depth_unit), units_per_slice = slice_ / depth_unit;
    for (int64_t u = 0; u < units; u += units_per_slice)
      for (int64_t p = 0; p < x.rows; p += panel_width) {
        // The panels of a group lie one after the other if they are packed; else it is one panel.
        rows.data = a + p * units * depth_unit + u * rows.unit;
        for (int64_t q = 0; q < x.columns; q += panel_width)
          products_.multiply(std::min(units_per_slice, units - u), rows,
                             b_panels_.data() + (q * units + u * panel_width) * depth_unit,
                             target(x, p, q, u * depth_unit));
      }
  }

  /// Sums over a slice that begins at depth s of the chunk: they go to the workspace, the last to
  /// c.
  simd::amx::Target target(const Part& x, int64_t p, int64_t q, int64_t s) {
    const int64_t at = (x.i + p) * to_.stride + x.j + q;
    float* sums = sums_.data() + p * columns_ + q;
    simd::amx::Target to{.c = sums,
                         .bf16 = false,
                         .stride = columns_,
                         .rows = std::min(panel_width, x.rows - p),
                         .columns = std::min(panel_width, x.columns - q),
                         .bias = nullptr,
                         .partial = s > 0 ? sums : nullptr,
                         .partial_stride = columns_};
    if (s == 0 && x.start > 0)
      to.partial = static_cast<const float*>(to_.c) + at, to.partial_stride = to_.stride;
    if (s + slice_ < x.depth) return to;
    to.c = static_cast<std::byte*>(to_.c) + at * (to_.bf16 ? 2 : 4);
    to.bf16 = to_.bf16, to.stride = to_.stride;
    if (x.last && to_.bias) to.bias = to_.bias + x.j + q;
    return to;
  }

  simd::Matrix a_, b_;
  AmxProduct to_;
  int64_t slice_, columns_, group_;
  Workspace<uint16_t> a_panels_, b_panels_;
  Workspace<float> sums_;
  simd::amx::Products products_;
};
}  // namespace

void amx_gemm(const simd::Matrix& a, const simd::Matrix& b, int64_t m, int64_t n, int64_t k,
              const AmxProduct& to) {
  const bool parallel = to.parallel && m * n * k > small_amx_product;
  const Cut cut(m, n, k, to.bf16, parallel ? omp_get_max_threads() : 1);
  const int64_t height = pieces_of(cut.row_panels, cut.row_blocks) * panel_width;
  const int64_t width = pieces_of(cut.column_panels, cut.column_blocks) * panel_width;

#pragma omp parallel if (parallel)
  {
    Worker worker(with_unit_stride(a, m, k), with_unit_stride(b, k, n), to, cut, width);
    for (int64_t start = 0; start < k; start += cut.chunk) {
      const int64_t depth = std::min(cut.chunk, k - start);
      int64_t packed = -1;
      // The static schedule gives a thread the same blocks of c in every chunk: no barrier between
      // chunks is needed.
#pragma omp for schedule(static) nowait
      for (int64_t task = 0; task < cut.row_blocks * cut.column_blocks; ++task) {
        const int64_t i = task % cut.row_blocks * height, j = task / cut.row_blocks * width;
        if (i >= m || j >= n) continue;  // the last block may begin behind the edge
        const Part x{.i = i,
                     .rows = std::min(height, m - i),
                     .j = j,
                     .columns = std::min(width, n - j),
                     .start = start,
                     .depth = depth,
                     .last = start + depth == k};
        if (j != packed) worker.pack_columns(x);
        packed = j;
        worker.multiply(x);
      }
    }
  }
}

}  // namespace halftone::cpu
