// Reductions of any kind over any strides and dtypes. The threads of a block go along outputs or
// along reduced elements, whichever are closer together in memory. If there are few outputs, the
// reduced elements are cut into pieces, whose results a second run joins.
#include <halftone/backends/cuda/launch.h>
#include <halftone/backends/cuda/reduction.h>
#include <halftone/backends/cuda/values.h>

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
