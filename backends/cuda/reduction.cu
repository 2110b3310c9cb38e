// Reductions. The usual sums of training (of everything, along contiguous rows, down the columns of
// a matrix) read packs; all others go through loops over
// strided tensors.
#include <halftone/backends/cuda/reduction.h>

#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/launch.h>
#include <halftone/backends/cuda/rows.h>
#include <halftone/backends/cuda/values.h>

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

// Reductions of any kind over any strides and dtypes. The threads of a block go along outputs or
// along reduced elements, whichever are closer together in memory. If there are few outputs, the
// reduced elements are cut into pieces, whose results a second run joins.

namespace halftone::cuda {

namespace {

template <class C> __device__ C start_of(Reduction kind) {
  using Limits = std::numeric_limits<C>;
  constexpr C most = Limits::has_infinity ? Limits::infinity() : Limits::max();
  constexpr C least = Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
  switch (kind) {
    case Reduction::max: return least;
    case Reduction::min: return most;
    case Reduction::prod: return C(1);
    default: return C(0);
  }
}
/// Keeps a NaN once it has met one. Integers overflow modulo 2^64.
template <class C> __device__ C joined(Reduction kind, C a, C b) {
  using Wrapped = std::conditional_t<std::is_integral_v<C>, uint64_t, C>;
  switch (kind) {
    case Reduction::max: return a >= b || a != a ? a : b;
    case Reduction::min: return a <= b || a != a ? a : b;
    case Reduction::prod: return C(Wrapped(a) * Wrapped(b));
    default: return C(Wrapped(a) + Wrapped(b));
  }
}

/// The cut of a block of `block_threads`: `outputs` x `reduced` lanes, both powers of two.
struct StridedCut {
  int outputs, reduced;
  bool outputs_side_by_side, small_kept, small_reduced;
  int64_t pieces, piece_length;
};

template <class C>
__global__ void __launch_bounds__(block_threads)
    reduce_strided_kernel(Reduction kind, bool squares, Layout<2> kept, Layout<1> reduced,
                          StridedCut cut, C divisor, Operand x, Operand y) {
  __shared__ C of_threads[block_threads];
  const int thread = int(threadIdx.x);
  const int output_lane = cut.outputs_side_by_side ? thread % cut.outputs : thread / cut.reduced;
  const int lane = cut.outputs_side_by_side ? thread / cut.outputs : thread % cut.reduced;
  const int place = lane * cut.outputs + output_lane;
  const int64_t tiles = (kept.turns + cut.outputs - 1) / cut.outputs;
  for (int64_t item = blockIdx.x; item < tiles * cut.pieces; item += gridDim.x) {
    const int64_t piece = item / tiles, output = item % tiles * cut.outputs + output_lane;
    const bool exists = output < kept.turns;
    const Places<2> at = kept.at_turn(exists ? output : 0, cut.small_kept);
    const int64_t begin = piece * cut.piece_length, stop = begin + cut.piece_length;
    const int64_t end = stop < reduced.turns ? stop : reduced.turns;
    C result = start_of<C>(kind);
    for (int64_t turn = begin + lane; exists && turn < end; turn += cut.reduced) {
      const C value = load_as<C>(x, at.of[0] + reduced.at_turn(turn, cut.small_reduced).of[0]);
      result = joined(kind, result, squares ? value * value : value);
    }
    of_threads[place] = result;
    for (int half = cut.reduced / 2; half > 0; half /= 2) {
      __syncthreads();
      if (lane < half)
        of_threads[place] = joined(kind, of_threads[place], of_threads[place + half * cut.outputs]);
    }
    if (exists && lane == 0)
      store_as<C>(y, at.of[1] * cut.pieces + piece, of_threads[place] / divisor);
    __syncthreads();  // of_threads may be written again
  }
}

int power_of_two_up_to(int64_t wanted, int most) {
  int power = 1;
  while (power < most && power < wanted) power *= 2;
  return power;
}

StridedCut cut_of(const Context& context, const Layout<2>& kept, const Layout<1>& reduced) {
  StridedCut cut{};
  cut.small_kept = kept.is_small(), cut.small_reduced = reduced.is_small();
  constexpr int threads = int(block_threads);
  cut.outputs_side_by_side =
      kept.depth > 0 && (reduced.depth == 0 || kept.steps[0][0] < reduced.steps[0][0]);
  if (cut.outputs_side_by_side) {
    cut.outputs = power_of_two_up_to(kept.turns, reduced.turns < 16 ? threads : 32);
    cut.reduced = threads / cut.outputs;
  } else {
    cut.reduced = power_of_two_up_to(reduced.turns, threads);
    cut.outputs = threads / cut.reduced;
  }
  const int64_t tiles = blocks_for(kept.turns, cut.outputs);
  const int64_t wanted = int64_t(context.multiprocessors()) * 8 / tiles;
  cut.pieces =
      std::clamp<int64_t>(wanted, 1, std::max<int64_t>(1, reduced.turns / (cut.reduced * 16)));
  cut.piece_length = (reduced.turns + cut.pieces - 1) / cut.pieces;
  return cut;
}

template <class C>
void reduce_as(const Context& context, Reduction kind, bool squares, const Layout<2>& kept,
               const Layout<1>& reduced, const Operand& x, C divisor, const Operand& y) {
  const StridedCut cut = cut_of(context, kept, reduced);
  const auto run = [&](const Operand& to, C by) {
    const int64_t tiles = blocks_for(kept.turns, cut.outputs);
    launch(context, reduce_strided_kernel<C>, {blocks_for(tiles * cut.pieces, 1), block_threads},
           kind, squares, kept, reduced, cut, by, x, to);
  };
  if (cut.pieces == 1) return run(y, divisor);
  const int64_t outputs = kept.turns, pieces = cut.pieces;
  const Tensor partial = scratch(context, {outputs, pieces}, dtype_of<C>);
  run(Operand(partial), C(1));
  const Layout<2> rows({outputs, 1}, {Strides{pieces, 1}, Strides{1, 1}});
  const Layout<1> columns({1, pieces}, {Strides{pieces, 1}});
  reduce_as<C>(context, kind, false, rows, columns, Operand(partial), divisor, y);
}

}  // namespace

void reduce_strided(const Context& context, Reduction kind, const ReduceLoops& loops,
                    const Tensor& x, double divisor, Tensor& y) {
  const bool squares = kind == Reduction::sum_of_squares;
  const Reduction joins = squares ? Reduction::sum : kind;
  const auto run = [&]<class C>(C by) {
    reduce_as<C>(context, joins, squares, loops.kept, loops.reduced, Operand(x), by, Operand(y));
  };
  const bool floating = is_floating(x.dtype()) || is_floating(y.dtype());
  const bool wide = x.dtype() == f64 || y.dtype() == f64 || !is_floating(x.dtype());
  if (!floating) run(int64_t(1));  // integers are reduced to integers exactly
  else if (wide) run(divisor);
  else run(float(divisor));
}

}  // namespace halftone::cuda

// Along rows: the position of the largest or smallest element, and running sums and products (in
// double, integers exactly).

namespace halftone {

namespace cuda {
namespace {

template <class C> __device__ bool same_value(C a, C b) { return a == b || (a != a && b != b); }

/// Takes the first of equal values; NaN comes first. `flipped`: searches for the smallest.
template <class C>
__global__ void __launch_bounds__(most_row_threads)
    arg_reduce_kernel(Operand x, int64_t rows, int64_t n, bool warps, bool flipped,
                      int64_t* index) {
  using Limits = std::numeric_limits<C>;
  constexpr C least = Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
  constexpr C most = Limits::has_infinity ? Limits::infinity() : Limits::max();
  const Team team(warps);
  for (int64_t r = team.first_row; r < rows; r += team.row_step) {
    C best = flipped ? most : least;
    int64_t place = n;
    for (int64_t i = team.rank; i < n; i += team.size) {
      const C value = load_as<C>(x, r * n + i);
      const bool better = flipped ? value < best : value > best;
      const bool first_nan = value != value && best == best;
      if (place == n || better || first_nan) best = value, place = i;
    }
    const C winner = flipped ? team.reduce(best, Min{}, most) : team.reduce(best, Max{}, least);
    place = team.reduce(same_value(best, winner) ? place : n, Min{}, n);
    if (team.rank == 0) index[r] = place < n ? place : 0;
  }
}

/// Returns the sum of values 0 .. lane of a warp.
template <class C> __device__ C warp_scan(C value) {
  const int lane = int(threadIdx.x) % warp_lanes;
  for (int by = 1; by < warp_lanes; by *= 2) {
    const C before = __shfl_up_sync(whole_warp, value, unsigned(by));
    if (lane >= by) value += before;
  }
  return value;
}

/// A block per row, `block_threads` elements at a time.
template <class C>
__global__ void __launch_bounds__(block_threads)
    cumulative_sum_kernel(Operand x, int64_t rows, int64_t n, bool reverse, Operand y) {
  constexpr int warps = int(block_threads) / warp_lanes;
  __shared__ C of_warps[warps];
  const int thread = int(threadIdx.x), lane = thread % warp_lanes, warp = thread / warp_lanes;
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    C carried = 0;
    for (int64_t first = 0; first < n; first += block_threads) {
      const int64_t turn = first + thread, place = r * n + (reverse ? n - 1 - turn : turn);
      const bool exists = turn < n;
      C sum = warp_scan(exists ? load_as<C>(x, place) : C(0));
      if (lane == warp_lanes - 1) of_warps[warp] = sum;
      __syncthreads();
      C before = carried;
      for (int w = 0; w < warps; ++w) {
        if (w < warp) before += of_warps[w];
        carried += of_warps[w];
      }
      if (exists) store_as<C>(y, place, before + sum);
      __syncthreads();  // of_warps may be written again
    }
  }
}

/// Equal parts of a row's gradient for the elements that are its extremum. The second reading finds
/// the row in a cache.
template <class T, int size>
__global__ void __launch_bounds__(most_row_threads)
    extremum_backward_kernel(const T* x, const T* y, const T* dy, int64_t rows, int64_t n,
                             bool warps, bool aligned, T* dx) {
  using C = compute_t<T>;
  const Team team(warps);
  for (int64_t r = team.first_row; r < rows; r += team.row_step) {
    const Row<size> row(r, n);
    const C extremum = widen(y[r]);
    const auto is_extremum = [&](int64_t pack, int i, C value) {
      return row.contains(pack * size + i) && value == extremum;
    };
    C values[size];
    int count = 0;
    for (int64_t pack = row.first_pack + team.rank; pack < row.pack_end; pack += team.size) {
      load_values(x, row, pack, aligned, values);
#pragma unroll
      for (int i = 0; i < size; ++i) count += is_extremum(pack, i, values[i]);
    }
    const C share = widen(dy[r]) / C(team.sum(count)),
            otherwise = extremum == extremum ? C(0) : extremum;
    for (int64_t pack = row.first_pack + team.rank; pack < row.pack_end; pack += team.size) {
      load_values(x, row, pack, aligned, values);
#pragma unroll
      for (int i = 0; i < size; ++i)
        values[i] = is_extremum(pack, i, values[i]) ? share : otherwise;
      store_values(dx, row, pack, aligned, values);
    }
  }
}

/// A thread per row: the products of parts could be infinite although the row's are not.
template <class C>
__global__ void cumulative_product_kernel(Operand x, int64_t rows, int64_t n, Operand y) {
  for (int64_t r = global_thread(); r < rows; r += all_threads()) {
    C product = 1;
    for (int64_t i = r * n; i < (r + 1) * n; ++i) {
      product = math::running_product(product, load_as<C>(x, i));
      store_as<C>(y, i, product);
    }
  }
}
/// before: scratch memory for the products of the factors before each one.
__global__ void cumulative_product_backward_kernel(Operand x, Operand dy, int64_t rows, int64_t n,
                                                   double* before, Operand dx) {
  for (int64_t r = global_thread(); r < rows; r += all_threads()) {
    double product = 1, after = 0;
    for (int64_t i = r * n; i < (r + 1) * n; ++i) {
      before[i] = product;
      product = math::running_product(product, load_as<double>(x, i));
    }
    for (int64_t i = (r + 1) * n - 1; i >= r * n; --i) {
      after += load_as<double>(dy, i);
      store_as<double>(dx, i, math::running_product_slope(before[i], after));
      after = math::running_product_slope(load_as<double>(x, i), after);
    }
  }
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void CudaBackend::arg_reduce(bool largest, const Tensor& x, Tensor& index) {
  const int64_t rows = index.numel(), n = rows == 0 ? 0 : x.numel() / rows;
  if (rows == 0) return;
  const RowLaunch start = row_launch(context_, rows, n, 1, 32);
  const auto run = [&](auto kernel) {
    launch(context_, kernel, start.shape, Operand(x), rows, n, start.warps, !largest,
           index.data<int64_t>());
  };
  if (!is_floating(x.dtype())) run(arg_reduce_kernel<int64_t>);
  else if (x.dtype() == f64) run(arg_reduce_kernel<double>);
  else run(arg_reduce_kernel<float>);
}

void CudaBackend::extremum_backward(const Tensor& x, const Tensor& y, const Tensor& dy,
                                    Tensor& dx) {
  if (x.numel() == 0) return;
  const int64_t rows = y.numel(), n = x.numel() / rows;
  visit_floating(x.dtype(), "extremum_backward", [&]<class T>() {
    constexpr int size = row_pack<T>;
    const RowLaunch start = row_launch(context_, rows, n, size, held_packs<T>);
    launch(context_, extremum_backward_kernel<T, size>, start.shape, x.data<T>(), y.data<T>(),
           dy.data<T>(), rows, n, start.warps, packs_aligned(size, x, dx), dx.data<T>());
  });
}

void CudaBackend::cumulative_sum(const Tensor& x, bool reverse, Tensor& y) {
  if (x.numel() == 0) return;
  const int64_t n = x.rank() == 0 ? 1 : x.size(-1), rows = x.numel() / n;
  launch(context_,
         is_floating(x.dtype()) ? cumulative_sum_kernel<double> : cumulative_sum_kernel<int64_t>,
         shape_for_rows(context_, rows), Operand(x), rows, n, reverse, Operand(y));
}

void CudaBackend::cumulative_product(const Tensor& x, Tensor& y) {
  if (x.numel() == 0) return;
  const int64_t n = x.rank() == 0 ? 1 : x.size(-1), rows = x.numel() / n;
  launch(context_,
         is_floating(x.dtype()) ? cumulative_product_kernel<double>
                                : cumulative_product_kernel<int64_t>,
         shape_for(context_, rows), Operand(x), rows, n, Operand(y));
}

void CudaBackend::cumulative_product_backward(const Tensor& x, const Tensor& dy, Tensor& dx) {
  if (x.numel() == 0) return;
  const int64_t n = x.rank() == 0 ? 1 : x.size(-1), rows = x.numel() / n;
  const Tensor before = scratch(context_, {x.numel()}, f64);
  launch(context_, cumulative_product_backward_kernel, shape_for(context_, rows), Operand(x),
         Operand(dy), rows, n, before.data<double>(), Operand(dx));
}

}  // namespace halftone
