// Sums and extremes over dimensions that are adjacent in memory, or in two groups: rows, columns
// (the gradient of a bias), channels of images, everything. Other patterns, products and f64 go to
// the reference. Partial results belong to fixed pieces of the data: the number of threads has no
// effect.
#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include <halftone/backends/cpu/cpu_backend.h>
#include <halftone/backends/cpu/staging.h>

namespace halftone {

namespace {
/// x in the order of its memory as [reduced, kept, reduced, kept]; each size may be 1.
struct Split {
  int64_t outer_reduced = 1, outer_kept = 1, reduced = 1, kept = 1;
  bool usable = false;
};

/// For dense x, row-major, channels-last or transposed; the dimensions of size 1 in y are reduced.
Split split_of(const Tensor& x, const Tensor& y) {
  Split split;
  std::array<int, Dims::max_rank> order{};  // innermost first
  int count = 0;
  for (int d = 0; d < x.rank(); ++d) {
    if (x.shape()[d] == 1) continue;
    int place = count++;
    for (; place > 0 && x.strides()[order[std::size_t(place - 1)]] > x.strides()[d]; --place)
      order[std::size_t(place)] = order[std::size_t(place - 1)];
    order[std::size_t(place)] = d;
  }
  if (count == 0 || !x.is_dense()) return split;
  int64_t* const sizes[] = {&split.kept, &split.reduced, &split.outer_kept, &split.outer_reduced};
  std::size_t place = 0;
  int last_kept = Dims::max_rank;
  for (int i = 0; i < count; ++i) {
    const int d = order[std::size_t(i)];
    const bool reduced = y.shape()[d] == 1;
    if (reduced != (place % 2 == 1)) ++place;
    if (place == std::size(sizes)) return split;
    *sizes[place] *= x.shape()[d];
    if (reduced) continue;
    // y is row-major: its kept dimensions must have the same order as in x's memory.
    if (d > last_kept) return split;
    last_kept = d;
  }
  split.usable = true;
  return split;
}

bool is_extreme(Reduction kind) { return kind == Reduction::max || kind == Reduction::min; }

double start_of(Reduction kind) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  return kind == Reduction::max ? -infinity : kind == Reduction::min ? infinity : 0.0;
}
/// Joins two partial results: sums add up; for extremes the larger or smaller one stays, or NaN.
double joined(Reduction kind, double a, double b) {
  if (!is_extreme(kind)) return a + b;
  return a != a || (kind == Reduction::max ? a > b : a < b) ? a : b;
}

/// Reduces n neighbors to one number. Squares are computed in double, so those of floats never
/// overflow.
double result_of(Reduction kind, const float* x, int64_t n) {
  const simd::Kernels& k = simd_kernels();
  switch (kind) {
    case Reduction::max: return double(k.max(x, n));
    case Reduction::min: return double(k.min(x, n));
    case Reduction::sum_of_squares: return k.sum_of_wide_squares(x, n);
    case Reduction::sum:
    case Reduction::mean:
    case Reduction::prod: break;
  }
  return k.sum(x, n);
}

double result_of_piece(Reduction kind, const Tensor& x, int64_t begin, int64_t end) {
  double result = start_of(kind);
  alignas(64) float buffer[cpu::block_length];
  for (int64_t i = begin; i < end; i += cpu::block_length) {
    const int64_t n = std::min(cpu::block_length, end - i);
    result = joined(kind, result, result_of(kind, cpu::floats(x, i, 1, n, buffer), n));
  }
  return result;
}

void reduce_rows(Reduction kind, const Tensor& x, const Split& split, double factor, Tensor& y) {
  const int64_t n = split.reduced, rows = split.outer_reduced * split.outer_kept,
                piece = reference::grain_length, pieces = reference::pieces_of(n, piece);
  cpu::Workspace<double> partial(rows * pieces), results(split.outer_kept);
  const int64_t group = std::max<int64_t>(1, piece / n);
  cpu::parallel_pieces(rows * pieces, group, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t row = task / pieces * n, first = task % pieces * piece;
      partial[task] = result_of_piece(kind, x, row + first, row + std::min(n, first + piece));
    }
  });
  std::fill_n(results.data(), results.size(), start_of(kind));
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t p = 0; p < pieces; ++p) {
      double& result = results[row % split.outer_kept];
      result = joined(kind, result, partial[row * pieces + p]);
    }
  for (int64_t i = 0; i < results.size(); ++i) results[i] *= factor;
  reference::store(results.data(), results.size(), y, 0);
}

/// Rows and columns of one task: partial sums in float have at most this many terms.
constexpr int64_t piece_rows = 512, piece_columns = 256;

/// Passes `rows` rows of `columns` columns of x [.., n], from an offset, to `take_in`, which adds a
/// block of them to `results`. For short floats, a block has as many rows as fit into a buffer.
template <class TakeIn>
void each_block_of_rows(const Tensor& x, int64_t offset, int64_t rows, int64_t n, int64_t columns,
                        const TakeIn& take_in) {
  if (x.dtype() == f32) return take_in(x.data<float>() + offset, rows, n);
  constexpr int64_t buffer_size = 16 * piece_columns;
  alignas(64) float buffer[buffer_size];
  const int64_t at_a_time = buffer_size / columns;
  for (int64_t row = 0; row < rows; row += at_a_time) {
    const int64_t count = std::min(at_a_time, rows - row);
    if (columns == n) cpu::widen(x, offset + row * n, count * n, buffer);
    else
      for (int64_t i = 0; i < count; ++i)
        cpu::widen(x, offset + (row + i) * n, columns, buffer + i * columns);
    take_in(buffer, count, columns);
  }
}

/// Computes results[j] = the reduction of column j of a piece.
void reduce_piece(Reduction kind, const Tensor& x, int64_t offset, int64_t rows, int64_t n,
                  int64_t columns, float* results) {
  const simd::Kernels& k = simd_kernels();
  std::fill_n(results, columns, float(start_of(kind)));
  each_block_of_rows(x, offset, rows, n, columns,
                     [&](const float* from, int64_t count, int64_t row_stride) {
                       if (kind == Reduction::max)
                         return k.max_rows(from, count, row_stride, columns, results);
                       if (kind == Reduction::min)
                         return k.min_rows(from, count, row_stride, columns, results);
                       alignas(64) float some[piece_columns];
                       k.add_rows(from, count, row_stride, columns, some);
                       k.accumulate(some, results, columns);
                     });
}

void reduce_columns(Reduction kind, const Tensor& x, const Split& split, double factor, Tensor& y) {
  const int64_t n = split.kept, rows = split.reduced;
  const int64_t pieces = reference::pieces_of(rows, piece_rows),
                strips = reference::pieces_of(n, piece_columns);
  const int64_t bands = split.outer_reduced * split.outer_kept * pieces;
  cpu::Workspace<float> partial(bands * n);
  const int64_t size = std::min(rows, piece_rows) * std::min(n, piece_columns);
  cpu::parallel_pieces(bands * strips, std::max<int64_t>(1, reference::grain_length / size),
                       [&](int64_t begin, int64_t end) {
                         for (int64_t task = begin; task < end; ++task) {
                           const int64_t band = task / strips, j = task % strips * piece_columns,
                                         row = band % pieces * piece_rows;
                           reduce_piece(kind, x, (band / pieces * rows + row) * n + j,
                                        std::min(piece_rows, rows - row), n,
                                        std::min(piece_columns, n - j),
                                        partial.data() + band * n + j);
                         }
                       });
  // The bands of one result: pieces of rows, repeated for each outer_reduced.
  cpu::parallel_pieces(split.outer_kept * strips, reference::grain_length / piece_columns,
                       [&](int64_t begin, int64_t end) {
                         for (int64_t task = begin; task < end; ++task) {
                           const int64_t kept = task / strips, j = task % strips * piece_columns,
                                         columns = std::min(piece_columns, n - j);
                           double totals[piece_columns];
                           std::fill_n(totals, columns, start_of(kind));
                           for (int64_t outer = 0; outer < split.outer_reduced; ++outer)
                             for (int64_t p = 0; p < pieces; ++p) {
                               const int64_t band = (outer * split.outer_kept + kept) * pieces + p;
                               const float* const from = partial.data() + band * n + j;
                               for (int64_t i = 0; i < columns; ++i)
                                 totals[i] = joined(kind, totals[i], double(from[i]));
                             }
                           for (int64_t i = 0; i < columns; ++i) totals[i] *= factor;
                           reference::store(totals, columns, y, kept * n + j);
                         }
                       });
}
}  // namespace

void CpuBackend::reduce(Reduction kind, const Tensor& x, Tensor& y) {
  // Rows are added up in f64 in any case.
  const bool exact = kind == Reduction::sum_of_squares && y.dtype() == f64;
  const bool served =
      kind != Reduction::prod && cpu::all_f32_or_short(x, exact ? Tensor{} : y) && x.numel() > 0;
  const Split split = served ? split_of(x, y) : Split{};
  if (!split.usable || (split.kept > 1 && kind == Reduction::sum_of_squares))
    return ReferenceBackend::reduce(kind, x, y);
  const double factor = kind == Reduction::mean ? double(y.numel()) / double(x.numel()) : 1.0;
  if (split.kept == 1) reduce_rows(kind, x, split, factor, y);
  else reduce_columns(kind, x, split, factor, y);
}

namespace {
/// Returns the position of a row's first extreme, or of its first NaN.
int64_t place_of_extreme(bool largest, const Tensor& x, int64_t begin, int64_t n) {
  const simd::Kernels& k = simd_kernels();
  alignas(64) float buffer[cpu::block_length];
  float best = 0;
  int64_t place = 0;
  for (int64_t first = 0; first < n; first += cpu::block_length) {
    const int64_t count = std::min(cpu::block_length, n - first);
    const float* const values = cpu::floats(x, begin + first, 1, count, buffer);
    const float found = largest ? k.max(values, count) : k.min(values, count);
    if (found != found)
      return first +
             (std::find_if(values, values + count, [](float v) { return v != v; }) - values);
    if (first > 0 && !(largest ? found > best : found < best)) continue;
    best = found, place = first + (std::find(values, values + count, found) - values);
  }
  return place;
}
}  // namespace

void CpuBackend::arg_reduce(bool largest, const Tensor& x, Tensor& index) {
  const int64_t rows = index.numel();
  if (!cpu::is_f32_or_short(x) || x.numel() == 0)
    return ReferenceBackend::arg_reduce(largest, x, index);
  const int64_t n = x.numel() / rows;
  cpu::parallel_pieces(rows, std::max<int64_t>(1, reference::grain_length / n),
                       [&](int64_t begin, int64_t end) {
                         for (int64_t row = begin; row < end; ++row)
                           index.data<int64_t>()[row] = place_of_extreme(largest, x, row * n, n);
                       });
}

void CpuBackend::extremum_backward(const Tensor& x, const Tensor& y, const Tensor& dy, Tensor& dx) {
  if (!cpu::all_f32_or_short(x, y, dy, dx) || x.numel() == 0)
    return ReferenceBackend::extremum_backward(x, y, dy, dx);
  const int64_t rows = y.numel(), n = x.numel() / rows;
  const auto work_on = [&](int64_t row) {
    alignas(64) float buffer[cpu::block_length], out[cpu::block_length];
    const auto extremum = float(reference::load_one(y, row));
    int32_t count = 0;
    const auto each_block = [&](const auto& body) {
      for (int64_t first = 0; first < n; first += cpu::block_length) {
        const int64_t length = std::min(cpu::block_length, n - first);
        body(row * n + first, length, cpu::floats(x, row * n + first, 1, length, buffer));
      }
    };
    each_block([&](int64_t, int64_t length, const float* values) {
      for (int64_t i = 0; i < length; ++i) count += int32_t(values[i] == extremum);
    });
    const float share = float(reference::load_one(dy, row)) / float(count);
    const float otherwise = extremum == extremum ? 0.0f : extremum;
    each_block([&](int64_t first, int64_t length, const float* values) {
      cpu::Output output(dx, first, 1, length, out);
      float* const to = output.data();
      for (int64_t i = 0; i < length; ++i) to[i] = values[i] == extremum ? share : otherwise;
      output.finish();
    });
  };
  cpu::parallel_pieces(rows, std::max<int64_t>(1, reference::grain_length / n),
                       [&](int64_t begin, int64_t end) {
                         for (int64_t row = begin; row < end; ++row) work_on(row);
                       });
}

}  // namespace halftone
