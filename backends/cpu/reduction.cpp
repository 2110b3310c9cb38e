// Sums over trailing dimensions (rows), leading ones (columns: the gradient of a bias), or
// everything; maxima over rows or everything. Other patterns, minima, products and f64 go to the
// reference.
// Partial results belong to fixed pieces of the data: the number of threads changes nothing.
#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include <halftone/backends/cpu/cpu_backend.h>
#include <halftone/backends/cpu/staging.h>

namespace halftone {

namespace {
struct Split {
  int64_t outer = 1, inner = 1;  // x as [outer, inner], one of which is reduced
  bool inner_reduced = false, usable = false;
};

/// x in row-major or channels-last memory, reduced over a leading or a trailing group of its memory
/// dimensions.
Split split_of(const Tensor& x, const Tensor& y) {
  Split split;
  std::array<int, Dims::max_rank> order{};
  int count = 0;
  for (int d = 0; d < x.rank(); ++d)
    if (x.shape()[d] != 1) order[std::size_t(count++)] = d;
  if (count == 0 || !x.is_dense()) return split;
  for (int i = 1; i < count; ++i)  // by insertion: there are eight at most
    for (int j = i; j > 0; --j) {
      int &left = order[std::size_t(j - 1)], &right = order[std::size_t(j)];
      if (x.strides()[left] < x.strides()[right]) std::swap(left, right);
    }
  const auto reduced = [&](int place) { return y.shape()[order[std::size_t(place)]] == 1; };
  int boundary = 0, changes = 0;
  for (int i = 1; i < count; ++i)
    if (reduced(i) != reduced(i - 1)) boundary = i, ++changes;
  if (changes > 1) return split;
  split.inner_reduced = reduced(count - 1);
  for (int i = 0; i < count; ++i)
    (i < boundary ? split.outer : split.inner) *= x.shape()[order[std::size_t(i)]];
  // y is row-major: its kept dimensions must come in the same order as in x's memory.
  int last = -1;
  for (int i = 0; i < count; ++i) {
    if (reduced(i)) continue;
    if (order[std::size_t(i)] < last) return split;
    last = order[std::size_t(i)];
  }
  split.usable = changes == 1 || split.inner_reduced;
  return split;
}

double start_of(Reduction kind) {
  return kind == Reduction::max ? -std::numeric_limits<double>::infinity() : 0.0;
}
/// How partial results join: sums add up, of a maximum the larger one stays, or NaN.
double joined(Reduction kind, double a, double b) {
  if (kind != Reduction::max) return a + b;
  return a != a || a > b ? a : b;
}

double result_of_piece(Reduction kind, const Tensor& x, int64_t begin, int64_t end) {
  const simd::Kernels& k = simd_kernels();
  double result = start_of(kind);
  alignas(64) float buffer[cpu::block_length];
  for (int64_t i = begin; i < end; i += cpu::block_length) {
    const int64_t n = std::min(cpu::block_length, end - i);
    const float* data = cpu::floats(x, i, 1, n, buffer);
    const double block = kind == Reduction::max              ? double(k.max(data, n))
                         : kind == Reduction::sum_of_squares ? k.sum_of_squares(data, n)
                                                             : k.sum(data, n);
    result = joined(kind, result, block);
  }
  return result;
}

void reduce_rows(Reduction kind, const Tensor& x, const Split& split, double factor, Tensor& y) {
  const int64_t n = split.inner, piece = reference::grain_length,
                pieces = reference::pieces_of(n, piece);
  cpu::Workspace<double> partial(split.outer * pieces);
  const int64_t group = std::max<int64_t>(1, piece / std::max<int64_t>(n, 1));
  cpu::parallel_pieces(split.outer * pieces, group, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t row = task / pieces * n, first = task % pieces * piece;
      partial[task] = result_of_piece(kind, x, row + first, row + std::min(n, first + piece));
    }
  });
  for (int64_t row = 0; row < split.outer; ++row) {
    double result = start_of(kind);
    for (int64_t p = 0; p < pieces; ++p) result = joined(kind, result, partial[row * pieces + p]);
    reference::store_one(result * factor, y, row);
  }
}

/// Rows and columns whose sums are one task: partial sums are of at most so many terms in float.
constexpr int64_t piece_rows = 512, piece_columns = 256;

/// sums = the sums of columns of x [.., n] over `rows` rows, from an offset; x short: so many rows
/// at a time as fit into a buffer.
void add_columns(const Tensor& x, int64_t offset, int64_t rows, int64_t n, int64_t columns,
                 float* sums) {
  const simd::Kernels& k = simd_kernels();
  if (x.dtype() == f32) return k.add_rows(x.data<float>() + offset, rows, n, columns, sums);
  constexpr int64_t buffer_size = 16 * piece_columns;
  alignas(64) float buffer[buffer_size], some[piece_columns];
  std::fill_n(sums, columns, 0.0f);
  const int64_t at_a_time = buffer_size / columns;
  for (int64_t row = 0; row < rows; row += at_a_time) {
    const int64_t count = std::min(at_a_time, rows - row);
    if (columns == n) cpu::widen(x, offset + row * n, count * n, buffer);
    else
      for (int64_t i = 0; i < count; ++i)
        cpu::widen(x, offset + (row + i) * n, columns, buffer + i * columns);
    k.add_rows(buffer, count, columns, columns, some);
    k.accumulate(some, sums, columns);
  }
}

void reduce_columns(const Tensor& x, const Split& split, double factor, Tensor& y) {
  const int64_t n = split.inner, rows = split.outer;
  const int64_t pieces = reference::pieces_of(rows, piece_rows),
                strips = reference::pieces_of(n, piece_columns);
  cpu::Workspace<float> partial(pieces * n);
  const int64_t size = std::min(rows, piece_rows) * std::min(n, piece_columns);
  cpu::parallel_pieces(pieces * strips, std::max<int64_t>(1, reference::grain_length / size),
                       [&](int64_t begin, int64_t end) {
                         for (int64_t task = begin; task < end; ++task) {
                           const int64_t p = task / strips, row = p * piece_rows,
                                         j = task % strips * piece_columns;
                           add_columns(x, row * n + j, std::min(piece_rows, rows - row), n,
                                       std::min(piece_columns, n - j), partial.data() + p * n + j);
                         }
                       });
  cpu::Workspace<double> totals(n);
  std::fill_n(totals.data(), n, 0.0);
  for (int64_t p = 0; p < pieces; ++p)
    for (int64_t j = 0; j < n; ++j) totals[j] += double(partial[p * n + j]);
  for (int64_t j = 0; j < n; ++j) totals[j] *= factor;
  reference::store(totals.data(), n, y, 0);
}
}  // namespace

void CpuBackend::reduce(Reduction kind, const Tensor& x, Tensor& y) {
  const bool by_columns = kind == Reduction::sum || kind == Reduction::mean;
  // Rows are added up in f64 in any case.
  const bool exact = kind == Reduction::sum_of_squares && y.dtype() == f64;
  const bool served = kind != Reduction::min && kind != Reduction::prod &&
                      cpu::all_f32_or_short(x, exact ? Tensor{} : y) && x.numel() > 0;
  const Split split = served ? split_of(x, y) : Split{};
  if (!split.usable || (!split.inner_reduced && !by_columns))
    return ReferenceBackend::reduce(kind, x, y);
  const double factor = kind == Reduction::mean ? double(y.numel()) / double(x.numel()) : 1.0;
  if (split.inner_reduced) reduce_rows(kind, x, split, factor, y);
  else reduce_columns(x, split, factor, y);
}

}  // namespace halftone
