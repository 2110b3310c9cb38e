// Own matrix products with threads: c[m, n] = a b (+ bias), c row-major.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <halftone/backends/cpu/simd/kernels.h>
#include <halftone/backends/cpu/staging.h>
#include <halftone/backends/reference/loops.h>
#include <halftone/backends/team.h>
#include <halftone/core/device.h>

namespace halftone::cpu {

/// The destination of an f32 product and its options.
struct Product {
  float* c;
  int64_t stride;               // between rows of c
  const float* bias = nullptr;  // [n]
  bool accumulate = false;      // c += a b
  bool parallel = true;         // false: on the calling thread, for batches with one product per
                                // thread
};
void gemm(const simd::Matrix& a, const simd::Matrix& b, int64_t m, int64_t n, int64_t k,
          const Product& to);

/// The same for bf16 with the CPU's bf16 instructions (only if has_bf16_products()), added up in
/// f32. a and b each have a unit stride.
struct Bf16Product {
  void* c;
  bool bf16;  // the dtype of c: bf16 or f32
  int64_t stride;
  const float* bias = nullptr;
  bool parallel = true;
};
/// A bf16 c cannot store partial sums, so its products have at most this depth.
inline constexpr int64_t bf16_depth = 4096;
void bf16_gemm(const simd::Matrix& a, const simd::Matrix& b, int64_t m, int64_t n, int64_t k,
               const Bf16Product& to);

// Splits matrices for both ways of blocking a matrix product, and blocks the one of floats.

/// Returns the matrix that begins at row i and column j of x.
inline simd::Matrix part(const simd::Matrix& x, int64_t i, int64_t j) {
  const int64_t size = x.element == simd::Element::f32 ? 4 : 2;
  return {static_cast<const std::byte*>(x.data) + (i * x.row + j * x.column) * size, x.element,
          x.row, x.column};
}

/// Returns the size of pieces of `total`: at most about `most`, a multiple of `unit`, and equal, so
/// that the last piece is not a small remainder.
inline int64_t even_piece(int64_t total, int64_t most, int64_t unit) {
  const int64_t piece = reference::pieces_of(total, reference::pieces_of(total, most));
  return reference::pieces_of(piece, unit) * unit;
}

// Cuts the result of a matrix product into blocks for threads that share nothing: if two need the
// same operand, both pack it.

/// Cuts c, row_panels by column_panels, into row_blocks by column_blocks. It takes the cut with the
/// least cost for the busiest thread among all that give each thread its share.
struct BlockCut {
  int64_t row_panels, column_panels;
  int64_t row_blocks = 1, column_blocks = 1;

  /// `most_columns`: panels of a block. `packing`: the cost of packing a panel, in units of the
  /// product of two panels.
  BlockCut(int64_t row_panels, int64_t column_panels, int64_t most_columns, int64_t packing,
           int64_t threads)
      : row_panels(row_panels), column_panels(column_panels) {
    const int64_t least = reference::pieces_of(column_panels, most_columns);
    int64_t best_cost = 0;
    for (int64_t rows = 1; rows <= std::min(threads, row_panels); ++rows) {
      const int64_t across = reference::pieces_of(threads, rows);
      const int64_t columns = std::min(column_panels, reference::pieces_of(least, across) * across);
      const int64_t cost = cost_of(rows, columns, packing, threads);
      if (best_cost != 0 && cost >= best_cost) continue;
      best_cost = cost, row_blocks = rows, column_blocks = columns;
    }
  }

  int64_t block_rows() const { return reference::pieces_of(row_panels, row_blocks); }
  int64_t block_columns() const { return reference::pieces_of(column_panels, column_blocks); }

 private:
  /// Returns the work of the busiest thread.
  int64_t cost_of(int64_t rows, int64_t columns, int64_t packing, int64_t threads) const {
    const int64_t tasks = reference::pieces_of(rows * columns, threads);
    const int64_t height = reference::pieces_of(row_panels, rows),
                  width = reference::pieces_of(column_panels, columns);
    return tasks * height * (width + packing) + packing * reference::pieces_of(tasks, rows) * width;
  }
};

// Cache blocking and threading of the matrix product c[m, n] = a b, after Goto and van de Geijn
// (2008). A thread packs a block of columns of b, a chunk of the depth deep, into its second-level
// cache. It takes the rows of a in small groups, and a tile of them stays in the first-level cache
// while it multiplies the block's columns. For few rows it is the reverse: all threads together
// pack the rows once, and each panel of columns is packed and multiplied at once. The depth is
// never split between threads, so the result does not depend on their number. The caller decides
// where the operands come from.

/// Columns of b: panels one after the other, or one panel in place.
struct Panels {
  const float* data;
  int64_t step;  // between depths
};

/// One product c[m, n] = a b. pack_rows(first row, rows, depth, count, panels) packs `count` depths
/// of rows of a, from a depth on; panels_of(first column, columns, depth, count, buffer) returns
/// those of b, packed into the buffer or in place.
template <class PackRows, class PanelsOf> class BlockedProduct {
 public:
  BlockedProduct(int64_t m, int64_t n, int64_t k, const Product& to, const PackRows& pack_rows,
                 const PanelsOf& panels_of)
      : m_(m),
        n_(n),
        k_(k),
        to_(to),
        pack_rows_(pack_rows),
        panels_of_(panels_of),
        chunk_(even_piece(k, chunk_depth, 16)),
        chain_(chain_of(m, n, chunk_)),
        row_tiles_(reference::pieces_of(m, tile_m_)),
        panels_(reference::pieces_of(n, tile_n_)),
        parallel_(to.parallel && m * n * k > reference::worth_waking(small_product)) {}

  void run() const {
    if (row_tiles_ <= few_tiles) by_panels();
    else by_blocks();
  }

 private:
  static constexpr int64_t chunk_depth = 384;
  static constexpr int64_t packed_depth = 2048;  // depths of few rows, packed at a time
  static constexpr int64_t block_columns = 512;  // columns that, a chunk deep, fill half of a
                                                 // second-level cache
  static constexpr int64_t group_tiles = 8;      // tiles of rows, packed at a time
  static constexpr int64_t few_tiles = group_tiles;
  /// Multiply-adds below which threads cost more than they save.
  static constexpr int64_t small_product = 1 << 18;

  /// Returns the number of products that are added up in a row before they join the total. For long
  /// rows of tiles the sums stay in registers for the whole depth; small products wait for loads
  /// and calls anyway.
  static int64_t chain_of(int64_t m, int64_t n, int64_t depth) {
    if (portable_bits()) return depth;  // the same for any number of rows
    if (m <= 4) return 16;
    return m * n <= 64 * 64 ? 32 : depth;
  }

  int64_t depth_at(int64_t start) const { return std::min(chunk_, k_ - start); }

  /// Multiplies tile t of the packed rows by the panel of columns from j on.
  void multiply(int64_t t, const float* rows, int64_t j, const Panels& panel, int64_t start) const {
    const int64_t i = t * tile_m_;
    kernels_.tile_product(depth_at(start), chain_, rows, panel.data, panel.step,
                          std::min(tile_m_, m_ - i), std::min(tile_n_, n_ - j),
                          to_.bias && start == 0 ? to_.bias + j : nullptr,
                          to_.accumulate || start > 0, to_.c + i * to_.stride + j, to_.stride);
  }

  void by_panels() const {
    // Packs many chunks of the rows at a time, so that threads wait for each other twice for all of
    // them.
    const int64_t most = std::max<int64_t>(1, packed_depth / chunk_) * chunk_,
                  size = row_tiles_ * tile_m_;
    Workspace<float> rows(size * std::min(most, reference::pieces_of(k_, chunk_) * chunk_));
    // If panels cannot be shared evenly, threads share the columns of a panel.
    const int64_t threads = reference::shares_of_region();
    const bool even = panels_ % threads == 0 || panels_ >= 4 * threads;
    const int64_t parts =
        even ? 1 : std::min(row_tiles_, reference::pieces_of(4 * threads, panels_));
    const int64_t tiles = reference::pieces_of(row_tiles_, parts);
    reference::RegionError error;
    const int64_t chunks = std::min(most / chunk_, reference::pieces_of(k_, chunk_));
    reference::Tasks packing(row_tiles_ * chunks), products(panels_ * parts);
#pragma omp parallel if (parallel_)
    {
      reference::OfThread<Workspace<float>> buffer(error, tile_n_ * chunk_);
      for (int64_t begin = 0; begin < k_; begin += most) {
        const int64_t end = std::min(k_, begin + most);
        if (begin > 0) {
#pragma omp single
          packing.again(), products.again();
        }
        packing.each([&](int64_t task) {
          const int64_t start = begin + task % chunks * chunk_, i = task / chunks * tile_m_;
          if (start >= end) return;
          pack_rows_(i, std::min(tile_m_, m_ - i), start, depth_at(start),
                     rows.data() + (start - begin) * size + i * depth_at(start));
        });
#pragma omp barrier
        const auto multiply_chunk = [&](int64_t task, int64_t start) {
          if (!buffer) return;
          const int64_t j = task % panels_ * tile_n_, first = task / panels_ * tiles;
          const float* const packed = rows.data() + (start - begin) * size;
          const Panels panel =
              panels_of_(j, std::min(tile_n_, n_ - j), start, depth_at(start), buffer->data());
          for (int64_t t = first; t < std::min(row_tiles_, first + tiles); ++t)
            multiply(t, packed + t * tile_m_ * depth_at(start), j, panel, start);
        };
        products.each_through(begin, end, chunk_, multiply_chunk);
#pragma omp barrier
      }
    }
    error.rethrow();
  }

  void by_blocks() const {
    constexpr int64_t packing = 1;
    const BlockCut cut(row_tiles_, panels_, block_columns / tile_n_, packing,
                       parallel_ ? reference::shares_of_region() : 1);
    const int64_t height = cut.block_rows(), width = cut.block_columns();
    reference::Tasks blocks(cut.row_blocks * cut.column_blocks);
    reference::RegionError error;
#pragma omp parallel if (parallel_)
    {
      reference::OfThread<Workspace<float>> rows(error, group_tiles * tile_m_ * chunk_),
          columns(error, width * tile_n_ * chunk_);
      int64_t packed_columns = -1, packed_start = -1;
      blocks.each_through(0, k_, chunk_, [&](int64_t task, int64_t start) {
        const int64_t t0 = task % cut.row_blocks * height, p0 = task / cut.row_blocks * width;
        // The last block may begin beyond the edge.
        if (t0 >= row_tiles_ || p0 >= panels_ || !rows || !columns) return;
        const int64_t tiles = std::min(t0 + height, row_tiles_),
                      panels = std::min(width, panels_ - p0);
        if (p0 != packed_columns || start != packed_start)
          pack_panels(p0, panels, start, columns->data());
        packed_columns = p0, packed_start = start;
        for (int64_t t = t0; t < tiles; t += group_tiles)
          multiply_group(t, std::min(group_tiles, tiles - t), p0, panels, start, rows->data(),
                         columns->data());
      });
      // No thread returns its workspace before all have theirs, so every call needs the same
      // memory.
#pragma omp barrier
    }
    error.rethrow();
  }

  void pack_panels(int64_t p, int64_t count, int64_t start, float* to) const {
    const int64_t j = p * tile_n_;
    panels_of_(j, std::min(count * tile_n_, n_ - j), start, depth_at(start), to);
  }
  void multiply_group(int64_t t0, int64_t tiles, int64_t p0, int64_t panels, int64_t start,
                      float* rows, const float* columns) const {
    const int64_t depth = depth_at(start), i = t0 * tile_m_;
    pack_rows_(i, std::min(tiles * tile_m_, m_ - i), start, depth, rows);
    for (int64_t t = 0; t < tiles; ++t)
      for (int64_t p = 0; p < panels; ++p)
        multiply(t0 + t, rows + t * tile_m_ * depth, (p0 + p) * tile_n_,
                 {columns + p * tile_n_ * depth, tile_n_}, start);
  }

  const simd::Kernels& kernels_ = simd_kernels();
  const int64_t tile_m_ = kernels_.tile_rows, tile_n_ = kernels_.tile_columns;
  int64_t m_, n_, k_;
  const Product& to_;
  const PackRows& pack_rows_;
  const PanelsOf& panels_of_;
  int64_t chunk_, chain_, row_tiles_, panels_;
  bool parallel_;
};

template <class PackRows, class PanelsOf>
void blocked_product(int64_t m, int64_t n, int64_t k, const Product& to, const PackRows& pack_rows,
                     const PanelsOf& panels_of) {
  BlockedProduct<PackRows, PanelsOf>(m, n, k, to, pack_rows, panels_of).run();
}

}  // namespace halftone::cpu
