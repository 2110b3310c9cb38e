// Cuts the result of a matrix product into blocks for threads that share nothing: if two need the
// same operand, both pack it.
#pragma once

#include <algorithm>
#include <cstdint>

#include <halftone/backends/reference/runs.h>

namespace halftone::cpu {

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

}  // namespace halftone::cpu
