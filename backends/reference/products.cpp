// Matrix products, attention, rotary positions, recurrent cells.
#include <algorithm>
#include <cmath>

#include <omp.h>

#include <halftone/backends/reference/cells.h>
#include <halftone/backends/reference/loops.h>
#include <halftone/backends/reference/reference.h>
#include <halftone/backends/reference/rope.h>
#include <halftone/backends/reference/rows.h>
#include <halftone/backends/team.h>
#include <halftone/core/math.h>

namespace halftone {

// Matrix products. One task computes a tile of c. Blocks of a and b are widened to double when they
// are needed, so any dtype and either layout costs one pass over a block, which is then used `tile`
// times.
// Equivalent to: c[m][n] = bias[n] + sum over k of a[m][k] * b[k][n], in double, rounded once.

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

// Attention, one query at a time: its weights are one row of doubles, recomputed in backward.
// Equivalent to: w = softmax(scale q k^T + mask); y = dropout(w) v. With g = dropout(dy v^T):
//   dv = dropout(w)^T dy,  ds = scale w (g - sum(w g)),  dq = ds k,  dk = ds^T q.

using namespace reference;

namespace {

/// One head of a tensor [n, heads, rows, columns].
class Head {
 public:
  Head(const Tensor& x, int64_t i)
      : x_(x),
        first_(i / x.shape()[1] * x.strides()[0] + i % x.shape()[1] * x.strides()[1]),
        row_(x.strides()[2]),
        column_(x.strides()[3]),
        width_(x.shape()[3]) {}
  void load_row(int64_t row, double* values) const {
    load(x_, first_ + row * row_, column_, width_, values);
  }
  void store_row(int64_t row, const double* values) const {
    store(values, width_, x_, first_ + row * row_, column_);
  }

 private:
  const Tensor& x_;
  int64_t first_, row_, column_, width_;
};

/// All rows of a head, widened to double.
class Rows {
 public:
  explicit Rows(const Tensor& x, int64_t head)
      : width_(x.shape()[3]), values_(x.shape()[2] * width_) {
    for (int64_t i = 0; i < x.shape()[2]; ++i)
      Head(x, head).load_row(i, values_.data() + i * width_);
  }
  const double* operator[](int64_t row) { return values_.data() + row * width_; }

 private:
  int64_t width_;
  Workspace<double> values_;
};

double dot(const double* a, const double* b, int64_t n) {
  return sum_of(n, [=](int64_t i) { return a[i] * b[i]; });
}

/// Returns the number of heads of q that share one head of k and v.
int64_t sharing(const Tensor& q, const Tensor& k) {
  return k.shape()[1] == 0 ? 1 : q.shape()[1] / k.shape()[1];
}

/// The keys of one head, and the weights that its queries give them.
class Weights {
 public:
  Weights(const Tensor& q, const Tensor& k, const Tensor& mask, const AttentionSettings& settings,
          int64_t head)
      : queries_(q, head),
        mask_(mask),
        settings_(settings),
        l_(q.shape()[2]),
        s_(k.shape()[2]),
        head_(head),
        keys_(k, head / sharing(q, k)),
        query_(q.shape()[3]),
        mask_row_(s_) {}

  const double* query(int64_t i) {
    queries_.load_row(i, query_.data());
    return query_.data();
  }
  const double* key(int64_t j) { return keys_[j]; }
  /// Computes scale q k^T + mask, or -infinity for a key that the query does not see.
  void scores(int64_t i, double* row) {
    const double* own = query(i);
    for (int64_t j = 0; j < s_; ++j) row[j] = settings_.scale * dot(own, key(j), query_.size());
    if (mask_.defined()) {
      Head(mask_, head_).load_row(i, mask_row_.data());
      for (int64_t j = 0; j < s_; ++j) {
        if (mask_.dtype() != boolean) row[j] += mask_row_[j];
        else if (mask_row_[j] == 0) row[j] = -std::numeric_limits<double>::infinity();
      }
    }
    for (int64_t j = i + 1; settings_.causal && j < s_; ++j)
      row[j] = -std::numeric_limits<double>::infinity();
  }
  /// Returns the factor of dropout for weight (i, j).
  double kept(int64_t i, int64_t j) const {
    if (settings_.dropout == 0) return 1;
    const auto place = uint64_t((head_ * l_ + i) * s_ + j);
    const auto words = Philox::words(settings_.key.seed, settings_.key.offset + place / 4);
    const bool keep = double(Philox::uniform(words[place % 4])) >= settings_.dropout;
    return keep ? 1 / (1 - settings_.dropout) : 0;
  }

 private:
  Head queries_;
  const Tensor& mask_;
  AttentionSettings settings_;
  int64_t l_, s_, head_;
  Rows keys_;
  Workspace<double> query_, mask_row_;
};

int64_t heads_in(const Tensor& x) { return x.shape()[0] * x.shape()[1]; }
}  // namespace

void ReferenceBackend::attention(const AttentionCall& call) {
  const int64_t l = call.q.shape()[2], s = call.k.shape()[2], ev = call.v.shape()[3];
  parallel_tasks(heads_in(call.q), [&](int64_t head) {
    Weights weights(call.q, call.k, call.mask, call.settings, head);
    const Head results(call.y, head);
    Rows values(call.v, head / sharing(call.q, call.k));
    Workspace<double> row(s), result(ev);
    for (int64_t i = 0; i < l; ++i) {
      weights.scores(i, row.data());
      ExpSum sum;
      sum.add(row.data(), s);
      ExpTotal total = sum.total();
      if (total.sum == 0) total = {std::numeric_limits<double>::infinity(), 1};
      std::fill_n(result.data(), ev, 0.0);
      for (int64_t j = 0; j < s; ++j) {
        const double weight =
            elementary::exp(row[j] - total.shift) / total.sum * weights.kept(i, j);
        for (int64_t c = 0; c < ev; ++c) result[c] += weight * values[j][c];
      }
      results.store_row(i, result.data());
      const int64_t place = head * l + i;
      if (call.log_sum_exp.shape()[0] == 1) {
        store_one(total.value(), call.log_sum_exp, place);
      } else {
        store_one(total.shift, call.log_sum_exp, place);
        store_one(total.sum, call.log_sum_exp, heads_in(call.q) * l + place);
      }
    }
  });
}

void ReferenceBackend::attention_backward(const AttentionBackwardCall& call) {
  const int64_t l = call.q.shape()[2], s = call.k.shape()[2], e = call.q.shape()[3],
                ev = call.v.shape()[3];
  const int64_t group = sharing(call.q, call.k);
  parallel_tasks(heads_in(call.k), [&](int64_t key_head) {
    Rows values(call.v, key_head);
    Workspace<double> w(s), g(s), dquery(e), dkeys(s * e), dvalues(s * ev);
    std::fill_n(dkeys.data(), dkeys.size(), 0.0);
    std::fill_n(dvalues.data(), dvalues.size(), 0.0);
    const auto add_head = [&](int64_t head) {
      Weights weights(call.q, call.k, call.mask, call.settings, head);
      Rows gradients(call.dy, head);
      for (int64_t i = 0; i < l; ++i) {
        weights.scores(i, w.data());
        const double *query = weights.query(i), *gradient = gradients[i];
        const double shift = load_one(call.log_sum_exp, head * l + i);
        const double total = call.log_sum_exp.shape()[0] == 1
                                 ? 1
                                 : load_one(call.log_sum_exp, heads_in(call.q) * l + head * l + i);
        CompensatedSum sums, total_weight;
        for (int64_t j = 0; j < s; ++j) {
          const double kept = weights.kept(i, j);
          w[j] = elementary::exp(w[j] - shift) / total;
          g[j] = kept * dot(gradient, values[j], ev);
          sums.add(w[j] * g[j]), total_weight.add(w[j]);
          for (int64_t c = 0; c < ev; ++c) dvalues[j * ev + c] += kept * w[j] * gradient[c];
        }
        // Divides by the sum of the weights, which rounding moves slightly from 1: with one key, ds
        // is 0.
        const double all = total_weight.value(), sum = all != 0 ? sums.value() / all : 0.0;
        std::fill_n(dquery.data(), e, 0.0);
        for (int64_t j = 0; j < s; ++j) {
          const double ds = call.settings.scale * w[j] * (g[j] - sum);
          for (int64_t c = 0; c < e; ++c) {
            dquery[c] += ds * weights.key(j)[c];
            dkeys[j * e + c] += ds * query[c];
          }
        }
        Head(call.dq, head).store_row(i, dquery.data());
      }
    };
    for (int64_t head = key_head * group; head < (key_head + 1) * group; ++head) add_head(head);
    for (int64_t j = 0; j < s; ++j) {
      Head(call.dk, key_head).store_row(j, dkeys.data() + j * e);
      Head(call.dv, key_head).store_row(j, dvalues.data() + j * ev);
    }
  });
}

// Recurrent cells and rotary positions in double.

namespace {
struct Exact {
  using Number = double;
  void load(const Tensor& x, int64_t offset, int64_t count, double* values) const {
    reference::load(x, offset, count, values);
  }
  void store(const double* values, int64_t count, const Tensor& y, int64_t offset) const {
    reference::store(values, count, y, offset);
  }
  void sigmoid(double* x, int64_t n) const {
    std::transform(x, x + n, x, [](double v) { return formula::Sigmoid::of(v); });
  }
  void tanh(double* x, int64_t n) const {
    std::transform(x, x + n, x, [](double v) { return math::tanh(v); });
  }
};
}  // namespace

void ReferenceBackend::rope(const Tensor& x, const RopeOptions& options, bool inverse, Tensor& y) {
  const int64_t e = x.size(3);
  each_turned_row<double>(x, options, inverse, y,
                          [&](int64_t from, int64_t to, const double* turn, double* row) {
                            load(x, from, e, row);
                            turn_row(options, turn, e, row, row);
                            store(row, e, y, to);
                          });
}

void ReferenceBackend::lstm_cell(const LstmCellCall& call) {
  reference::lstm_cell(Exact{}, call.x, call.recurrent, call.cell_before, call.gates, call.cell,
                       call.y);
}
void ReferenceBackend::lstm_cell_backward(const LstmCellBackwardCall& call) {
  reference::lstm_cell_backward(Exact{}, call.gates, call.cell_before, call.cell, call.dy,
                                call.dstate, call.dcell, call.dgates);
}
void ReferenceBackend::gru_cell(const Tensor& x, const Tensor& recurrent, const Tensor& state,
                                Tensor& gates, Tensor& y) {
  reference::gru_cell(Exact{}, x, recurrent, state, gates, y);
}
void ReferenceBackend::gru_cell_backward(const GruCellBackwardCall& call) {
  reference::gru_cell_backward(Exact{}, call.gates, call.state, call.dy, call.dstate, call.dx,
                               call.drecurrent);
}

}  // namespace halftone
