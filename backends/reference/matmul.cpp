// Matrix products. One task computes a tile of c. Blocks of a and b are widened to double when they
// are needed, so any dtype and either layout costs one pass over a block, which is then used `tile`
// times.
// Equivalent to: c[m][n] = bias[n] + sum over k of a[m][k] * b[k][n], in double, rounded once.
#include <halftone/backends/reference/reference.h>

#include <omp.h>

#include <halftone/backends/reference/product.h>
#include <halftone/backends/reference/runs.h>
#include <halftone/backends/team.h>

namespace halftone {

using namespace reference;

namespace {

constexpr int64_t tile = 64, depth_block = 256;

struct Tile {                    // the buffers of one thread
  double a[tile * depth_block];  // [rows of the tile, depth]
  double b[depth_block * tile];  // [depth, columns of the tile]
  double c[tile * tile];
};

/// The last two dimensions of a rank 2 or rank 3 tensor.
struct MatrixView {
  const Tensor& tensor;
  int64_t batch_step, row_step, column_step;

  explicit MatrixView(const Tensor& x)
      : tensor(x),
        batch_step(x.rank() == 3 && x.size(0) > 1 ? x.strides()[0] : 0),
        row_step(x.strides()[x.rank() - 2]),
        column_step(x.strides()[x.rank() - 1]) {}

  /// Computes block[i][j] = tensor[batch][row + i][column + j], with `width` elements from one row
  /// of the block to the next.
  void load_block(int64_t batch, int64_t row, int64_t rows, int64_t column, int64_t columns,
                  double* block, int64_t width) const {
    const int64_t first = batch * batch_step + row * row_step + column * column_step;
    if (column_step <= row_step) {
      for (int64_t i = 0; i < rows; ++i)
        load(tensor, first + i * row_step, column_step, columns, block + i * width);
      return;
    }
    double values[depth_block];
    for (int64_t j = 0; j < columns; ++j) {
      load(tensor, first + j * column_step, row_step, rows, values);
      for (int64_t i = 0; i < rows; ++i) block[i * width + j] = values[i];
    }
  }
};

}  // namespace

void ReferenceBackend::matmul(const Tensor& a, const Tensor& b, const Tensor& bias, Tensor& c) {
  const int64_t m = c.size(-2), n = c.size(-1), k = a.size(-1);
  if (c.numel() == 0) return;
  const int64_t row_tiles = pieces_of(m, tile), column_tiles = pieces_of(n, tile);
  const int64_t batches = c.numel() / (m * n);
  const MatrixView left(a), right(b);
  Workspace<Tile> tiles(cpu_threads());

  parallel_tasks(batches * row_tiles * column_tiles, [&](int64_t task) {
    Tile& t = tiles[omp_get_thread_num()];
    const int64_t column = task % column_tiles * tile, columns = std::min(tile, n - column);
    const int64_t row = task / column_tiles % row_tiles * tile, rows = std::min(tile, m - row);
    const int64_t batch = task / column_tiles / row_tiles;

    load(bias, column, columns, t.c);
    for (int64_t i = 1; i < rows; ++i) std::copy_n(t.c, columns, t.c + i * tile);
    for (int64_t first = 0; first < k; first += depth_block) {
      const int64_t depth = std::min(depth_block, k - first);
      left.load_block(batch, row, rows, first, depth, t.a, depth_block);
      right.load_block(batch, first, depth, column, columns, t.b, tile);
      for (int64_t i = 0; i < rows; ++i)
        add_product(depth, columns, t.a + i * depth_block, 1, t.b, tile, t.c + i * tile);
    }
    for (int64_t i = 0; i < rows; ++i)
      store(t.c + i * tile, columns, c, (batch * m + row + i) * n + column);
  });
}

}  // namespace halftone
