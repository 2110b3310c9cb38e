// Blocking and threading of the bf16 product, on AMX or AVX512-BF16. A thread packs a block of
// columns of b into its second-level cache and takes the rows of a in small groups; its partial
// sums between slices of the depth stay near the first-level cache. Threads share nothing: if two
// need the same operand, both pack it, and c is cut so that this is rare. Every cut sums an element
// of c in the same order, so the result does not depend on the number of threads. The caller
// decides where the operands come from.
#pragma once

#include <algorithm>
#include <numeric>

#include <halftone/backends/cpu/gemm_blocking.h>
#include <halftone/backends/cpu/simd/panels.h>
#include <halftone/backends/cpu/staging.h>
#include <halftone/backends/team.h>

namespace halftone::cpu {

namespace panel_product {
using reference::pieces_of;
using simd::panels::depth_unit;
using simd::panels::panel_width;

inline constexpr int64_t block_elements = 5 << 17;  // packed elements of b that fill the
                                                    // second-level cache
inline constexpr int64_t most_columns = 512;        // of such a block
inline constexpr int64_t slice_depth =
    640;  // a panel of a with this depth stays in the first-level cache
// c in f32 holds sums between chunks of the depth. Small chunks allow wide blocks, and a is packed
// once per block. c in bf16 cannot hold them, so only a caller that stages the sums can use chunks
// there.
inline constexpr int64_t f32_chunk = 1024;
inline constexpr int64_t packing_cost = 2;         // of a panel, in units of the product of two
                                                   // panels
inline constexpr int64_t most_shared = 1 << 22;    // elements of a, packed for several blocks
inline constexpr int64_t small_product = 1 << 20;  // multiply-adds below which threads cost more
                                                   // than they save

/// Cuts c into blocks, and the depth into chunks of slices.
struct Cut : BlockCut {
  int64_t chunk, slice;

  Cut(int64_t m, int64_t n, int64_t chunk, int64_t threads)
      : BlockCut(pieces_of(m, panel_width), pieces_of(n, panel_width),
                 std::min(most_columns, block_elements / chunk) / panel_width, packing_cost,
                 threads),
        chunk(chunk),
        slice(even_piece(chunk, slice_depth, depth_unit)) {}
};

/// Rows from i and columns from j of c, and the chunk of the depth that is added to them.
struct Part {
  int64_t i, rows, j, columns, start, depth;
  bool last;
};

/// Returns the start of the rows in the panels of all rows of a chunk.
inline int64_t place_of(const Part& x) { return x.i * pieces_of(x.depth, depth_unit) * depth_unit; }

/// The work of one thread. Products: from simd/panels.h. LeftRows: see below.
template <class Products, class LeftRows, class PackColumns> class Worker {
 public:
  Worker(const LeftRows& left, const PackColumns& pack_columns, const Bf16Product& to,
         const Cut& cut, int64_t columns)
      : left_(left),
        pack_columns_(pack_columns),
        to_(to),
        slice_(cut.slice),
        columns_(columns),
        group_(left.group()),
        a_panels_(group_ * cut.chunk),
        b_panels_(columns * cut.chunk),
        sums_(cut.slice < cut.chunk ? group_ * columns : 0) {}

  void pack_columns(const Part& x) { pack_columns_(x, b_panels_.data()); }
  /// Multiplies by the packed columns. `all_rows`: rows of the chunk, if they were packed for all
  /// threads.
  void multiply(const Part& x, const uint16_t* all_rows) {
    for (Part group = x; group.i < x.i + x.rows; group.i += group_) {
      group.rows = std::min(group_, x.i + x.rows - group.i);
      const simd::panels::Rows rows = all_rows ? simd::panels::Rows{all_rows + place_of(group)}
                                               : left_.rows(group, a_panels_.data());
      fetch_behind(group, x.i + x.rows, all_rows);
      multiply_group(group, rows);
    }
  }

 private:
  /// Prefetches the next group of rows while this one is multiplied.
  void fetch_behind(Part group, int64_t end, const uint16_t* all_rows) {
    const int64_t units = pieces_of(group.rows, panel_width) *
                          pieces_of(group.columns, panel_width) *
                          pieces_of(group.depth, depth_unit);
    group.i += group.rows, group.rows = std::min(group_, end - group.i);
    simd::panels::Ahead ahead;
    if (group.rows > 0 && all_rows)
      ahead = {.data = reinterpret_cast<const std::byte*>(all_rows + place_of(group)),
               .pieces = 1,
               .bytes = group.rows * group.depth * int64_t(sizeof(uint16_t))};
    else if (group.rows > 0) ahead = left_.ahead(group);
    products_.fetch(ahead, units);
  }

  void multiply_group(const Part& x, simd::panels::Rows rows) {
    const uint16_t* a = rows.data;
    const int64_t units = pieces_of(x.depth, depth_unit), units_per_slice = slice_ / depth_unit;
    for (int64_t u = 0; u < units; u += units_per_slice)
      for (int64_t p = 0; p < x.rows; p += panel_width) {
        // Packed panels of a group are contiguous; otherwise the group is one panel.
        rows.data = a + p * units * depth_unit + u * rows.unit;
        for (int64_t q = 0; q < x.columns; q += panel_width)
          products_.multiply(std::min(units_per_slice * depth_unit, x.depth - u * depth_unit), rows,
                             b_panels_.data() + (q * units + u * panel_width) * depth_unit,
                             target(x, p, q, u * depth_unit));
      }
  }

  /// Returns the destination of the sums over the slice at depth s of the chunk: a block of the
  /// workspace, from which the next slice continues; for the last slice, c.
  simd::panels::Target target(const Part& x, int64_t p, int64_t q, int64_t s) {
    constexpr int64_t tile = panel_width / 2;
    float* sums = sums_.data() + p * columns_ + q * panel_width;
    const float* begun = s > 0 ? sums : nullptr;
    const int64_t rows = std::min(panel_width, x.rows - p),
                  columns = std::min(panel_width, x.columns - q);
    if (s + slice_ < x.depth)  // whole tiles
      return {.c = sums,
              .bf16 = false,
              .stride = panel_width,
              .rows = rows > tile ? 2 * tile : tile,
              .columns = columns > tile ? 2 * tile : tile,
              .begun = begun,
              .near = true};
    const int64_t at = (x.i + p) * to_.stride + x.j + q;
    return {.c = static_cast<std::byte*>(to_.c) + at * (to_.bf16 ? 2 : 4),
            .bf16 = to_.bf16,
            .stride = to_.stride,
            .rows = rows,
            .columns = columns,
            .bias = x.last && to_.bias ? to_.bias + x.j + q : nullptr,
            .accumulate = x.start > 0,
            .begun = begun};
  }

  const LeftRows& left_;
  const PackColumns& pack_columns_;
  Bf16Product to_;
  int64_t slice_, columns_, group_;
  Workspace<uint16_t> a_panels_, b_panels_;
  Workspace<float> sums_;
  Products products_;
};

/// Computes c[m, n] = a b. left.rows(part, buffer) returns the part's rows of a, at most
/// left.group() of them, packed into the buffer or in place. left.ahead(part) returns the memory
/// that it will read. left.shares(columns) says whether blocks of this width may share the rows
/// that left.pack(part, buffer) packs. pack_columns(part, panels) packs the part's columns of b.
template <class Products, class LeftRows, class PackColumns>
void multiply(int64_t m, int64_t n, int64_t k, const Bf16Product& to, const LeftRows& left,
              const PackColumns& pack_columns) {
  const bool parallel = to.parallel && m * n * k > reference::worth_waking(small_product);
  const int64_t threads = parallel ? reference::shares_of_region() : 1;
  const Cut cut(m, n, even_piece(k, to.bf16 ? bf16_depth : f32_chunk, depth_unit), threads);
  const int64_t height = cut.block_rows() * panel_width, width = cut.block_columns() * panel_width;
  // If a thread would pack the same rows for several blocks, all threads pack them together, one
  // chunk at a time, while the chunk before may still be read.
  const int64_t rows_of_chunk = cut.row_panels * panel_width * cut.chunk, group = left.group();
  reference::Tasks blocks(cut.row_blocks * cut.column_blocks);
  const bool together = !blocks.in_turn() && cut.column_blocks > threads &&
                        rows_of_chunk <= most_shared && m >= group * threads && left.shares(width);
  Workspace<uint16_t> shared(
      together ? std::min<int64_t>(2, pieces_of(k, cut.chunk)) * rows_of_chunk : 0);

  const auto rows_at = [&](int64_t start) {
    return together ? shared.data() + start / cut.chunk % 2 * rows_of_chunk : nullptr;
  };
  reference::RegionError error;
#pragma omp parallel if (parallel)
  {
    reference::OfThread<Worker<Products, LeftRows, PackColumns>> worker(error, left, pack_columns,
                                                                        to, cut, width);
    int64_t packed_columns = -1, packed_start = -1;
    const auto multiply_block = [&](int64_t task, int64_t start) {
      const int64_t i = task % cut.row_blocks * height, j = task / cut.row_blocks * width;
      if (i >= m || j >= n || !worker) return;  // the last block may begin beyond the edge
      const int64_t depth = std::min(cut.chunk, k - start);
      const Part x{.i = i,
                   .rows = std::min(height, m - i),
                   .j = j,
                   .columns = std::min(width, n - j),
                   .start = start,
                   .depth = depth,
                   .last = start + depth == k};
      if (j != packed_columns || start != packed_start) worker->pack_columns(x);
      packed_columns = j, packed_start = start;
      worker->multiply(x, rows_at(start));
    };
    if (together) {
      for (int64_t start = 0; start < k; start += cut.chunk) {
#pragma omp for schedule(static)
        for (int64_t i = 0; i < m; i += group) {
          const Part x{.i = i,
                       .rows = std::min(group, m - i),
                       .j = 0,
                       .columns = width,
                       .start = start,
                       .depth = std::min(cut.chunk, k - start),
                       .last = false};
          left.pack(x, rows_at(start) + place_of(x));
        }
        blocks.each([&](int64_t task) { multiply_block(task, start); });
      }
    } else {
      blocks.each_through(0, k, cut.chunk, multiply_block);
    }
    // No thread returns its workspace before all have theirs, so every call needs the same memory.
#pragma omp barrier
  }
  error.rethrow();
}

}  // namespace panel_product

/// Does the same with the instructions that this CPU has.
template <class LeftRows, class PackColumns>
void bf16_product(int64_t m, int64_t n, int64_t k, const Bf16Product& to, const LeftRows& left,
                  const PackColumns& pack_columns) {
  if (use_amx()) panel_product::multiply<simd::amx::Products>(m, n, k, to, left, pack_columns);
  else panel_product::multiply<simd::panels::Products>(m, n, k, to, left, pack_columns);
}

// The rows of a matrix as the left operand of the bf16 product.

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
