// Reductions. The usual sums of training (of everything, along contiguous rows, down the columns of
// a matrix) read packs; all others go through reduction_strided.cu.
#include <halftone/backends/cuda/columns.h>
#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/reduction.h>
#include <halftone/backends/cuda/rows.h>

namespace halftone {

namespace cuda {
namespace {

/// Sums stretches of `length` elements of each row, `pieces` per row: y[row * pieces + piece] = sum
/// / divisor.
template <class T>
__global__ void __launch_bounds__(most_row_threads)
    row_sums_kernel(const T* x, int64_t rows, int64_t n, int64_t pieces, int64_t length, bool warps,
                    bool aligned, bool squares, compute_t<T> divisor, Operand y) {
  using C = compute_t<T>;
  constexpr int size = row_pack<T>;
  const Team team(warps);
  for (int64_t item = team.first_row; item < rows * pieces; item += team.row_step) {
    const int64_t first = item / pieces * n, begin = first + item % pieces * length;
    const int64_t end = begin + length < first + n ? begin + length : first + n;
    const Row<size> row(begin, end, std::integral_constant<int, size>{});
    C sums[size] = {};
    for (int64_t pack = row.first_pack + team.rank; pack < row.pack_end; pack += team.size) {
      C values[size];
      load_values(x, row, pack, aligned, values);
#pragma unroll
      for (int i = 0; i < size; ++i) sums[i] += squares ? values[i] * values[i] : values[i];
    }
#pragma unroll
    for (int i = 1; i < size; ++i) sums[0] += sums[i];
    const C sum = team.sum(sums[0]);
    if (team.rank == 0) store_as<C>(y, item, sum / divisor);
  }
}

template <class T>
void sum_rows(const Context& context, const Tensor& x, int64_t rows, int64_t n, bool squares,
              double divisor, const Operand& y) {
  using C = compute_t<T>;
  constexpr int size = row_pack<T>;
  constexpr int64_t shortest = 16384;  // elements that are enough for a separate block
  const int64_t wanted = int64_t(context.multiprocessors()) * 8 / rows;
  const int64_t pieces = std::clamp<int64_t>(wanted, 1, std::max<int64_t>(1, n / shortest));
  const int64_t share = (n + pieces - 1) / pieces, length = (share + size - 1) / size * size;
  RowLaunch start = row_launch(context, rows * pieces, length, size, held_packs<T>);
  const auto run = [&](const Operand& to, double by) {
    launch(context, row_sums_kernel<T>, start.shape, x.data<T>(), rows, n, pieces, length,
           start.warps, packs_aligned(size, x), squares, C(by), to);
  };
  if (pieces == 1) return run(y, divisor);
  const Tensor partial = scratch(context, {rows * pieces}, dtype_of<C>);
  run(Operand(partial), 1);
  sum_rows<C>(context, partial, rows, pieces, false, divisor, y);
}

/// The elements of x as terms of column sums; rows are `step` apart.
template <class T, int size> struct Elements {
  const T* x;
  int64_t step;
  bool squares;
  __device__ Elements at(int64_t column) const { return {x + column, step, squares}; }
  template <class Result> __device__ void operator()(int64_t row, Result* sums) const {
    const auto loaded = *reinterpret_cast<const Pack<T, size>*>(x + row * step);
#pragma unroll
    for (int i = 0; i < size; ++i) {
      const compute_t<T> value = widen(loaded.values[i]);
      sums[i].of[0] += squares ? value * value : value;
    }
  }
};
struct StoreSum {
  Operand y;
  double divisor;
  __device__ void operator()(int64_t, int64_t column, const ColumnSums<1, double>& total) const {
    store_as<double>(y, column, total.of[0] / divisor);
  }
};

template <class T, int size>
void sum_columns(const Context& context, const ReduceLoops& loops, const Tensor& x, bool squares,
                 double divisor, const Tensor& y) {
  const int64_t step = loops.reduced.depth == 0 ? 0 : loops.reduced.steps[0][0];
  reduce_columns<size, ColumnSums<1, compute_t<T>>>(context, loops.reduced.turns, loops.kept.turns,
                                                    Elements<T, size>{x.data<T>(), step, squares},
                                                    StoreSum{Operand(y), divisor});
}

/// Returns whether the reduced elements are contiguous rows, one after the other.
bool is_rows(const ReduceLoops& loops) {
  const Layout<1>& r = loops.reduced;
  const Layout<2>& k = loops.kept;
  return r.depth == 1 && r.steps[0][0] == 1 &&
         (k.depth == 0 || (k.depth == 1 && k.steps[0][0] == r.turns && k.steps[0][1] == 1));
}
/// Returns whether the rows of a matrix are added up.
bool is_columns(const ReduceLoops& loops) {
  const Layout<1>& r = loops.reduced;
  const Layout<2>& k = loops.kept;
  return r.depth == 1 && k.depth == 1 && k.steps[0][0] == 1 && k.steps[0][1] == 1;
}

bool sum_fast(const Context& context, const ReduceLoops& loops, const Tensor& x, bool squares,
              double divisor, Tensor& y) {
  if (!is_floating(x.dtype()) || size_of(x.dtype()) == 1 || x.numel() == 0) return false;
  if (!is_floating(y.dtype()) || (y.dtype() == f64 && x.dtype() != f64)) return false;
  const bool rows = is_rows(loops);
  if (!rows && !is_columns(loops)) return false;
  visit_floating(x.dtype(), "reduce", [&]<class T>() {
    constexpr int size = row_pack<T>;
    if (rows)
      return sum_rows<T>(context, x, loops.kept.turns, loops.reduced.turns, squares, divisor,
                         Operand(y));
    const bool packs = packs_aligned(size, x) && loops.kept.turns % size == 0 &&
                       loops.reduced.steps[0][0] % size == 0;
    if (packs) sum_columns<T, size>(context, loops, x, squares, divisor, y);
    else sum_columns<T, 1>(context, loops, x, squares, divisor, y);
  });
  return true;
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void CudaBackend::reduce(Reduction kind, const Tensor& x, Tensor& y) {
  if (y.numel() == 0) return;
  const ReduceLoops loops(x, y);
  const bool squares = kind == Reduction::sum_of_squares, mean = kind == Reduction::mean;
  const double divisor = mean ? double(x.numel()) / double(y.numel()) : 1.0;
  if ((kind == Reduction::sum || mean || squares) &&
      sum_fast(context_, loops, x, squares, divisor, y))
    return;
  reduce_strided(context_, mean ? Reduction::sum : kind, loops, x, divisor, y);
}

}  // namespace halftone
