// Sums, maxima and other reductions over the threads of a warp or a block. All threads must call
// them and all get the result; the order of the sum is fixed, so results repeat.
#pragma once

#include <limits>

#include <cuda_runtime.h>

#include <halftone/backends/cuda/launch.h>
#include <halftone/backends/cuda/values.h>
#include <halftone/core/language.h>
#include <halftone/core/math.h>

namespace halftone::cuda {

inline constexpr unsigned whole_warp = 0xffffffffu;
inline constexpr int warp_lanes = 32, most_warps = 32;

struct Sum {
  template <class A> HT_HD A operator()(A a, A b) const { return a + b; }
};
struct Max {  // NaN wins
  template <class A> HT_HD A operator()(A a, A b) const { return a != a || a > b ? a : b; }
};
struct Min {
  template <class A> HT_HD A operator()(A a, A b) const { return a != a || a < b ? a : b; }
};

/// Reduces over the 32 lanes of a full warp.
template <class A, class Combine> __device__ A warp_reduce(A value, Combine combine) {
  for (int bits = warp_lanes / 2; bits > 0; bits /= 2)
    value = combine(value, __shfl_xor_sync(whole_warp, value, bits));
  return value;
}

/// Reduces over a one-dimensional block of a multiple of 32 threads. `neutral` must not change a
/// result.
template <class A, class Combine> __device__ A block_reduce(A value, Combine combine, A neutral) {
  __shared__ A of_warps[most_warps];
  const int lane = int(threadIdx.x) % warp_lanes, warp = int(threadIdx.x) / warp_lanes;
  const int warps = int(blockDim.x) / warp_lanes;
  value = warp_reduce(value, combine);
  if (warps == 1) return value;
  if (lane == 0) of_warps[warp] = value;
  __syncthreads();
  value = warp_reduce(lane < warps ? of_warps[lane] : neutral, combine);
  __syncthreads();  // of_warps may be written again
  return value;
}

template <class A> __device__ A block_sum(A value) { return block_reduce(value, Sum{}, A(0)); }

// Shared parts of kernels over the rows of a matrix: a warp takes a short row, a block a long one,
// and rows of any length are read in packs. Packs begin at multiples of their size from the
// beginning of the tensor, so they are aligned. The first and the last pack of a row may include
// elements of neighboring rows; only elements inside the row are used.

inline constexpr int most_row_threads = 512;
/// Elements per pack in reductions: as many for float as for short floats, so that sums of the same
/// numbers are equal to the last bit, stored as f32 or shorter.
template <class T> inline constexpr int row_pack = sizeof(T) == 8 ? 2 : 8;
/// Elements of a row that a thread keeps in registers.
template <class T> inline constexpr int held_values = sizeof(T) == 8 ? 16 : 32;
template <class T> inline constexpr int held_packs = held_values<T> / row_pack<T>;
/// The packs if a second tensor is also kept in registers: fewer.
template <class T> inline constexpr int held_pairs = held_packs<T> / 2;

/// The threads that work on one row together.
struct Team {
  bool is_warp;
  int rank, size;
  int64_t first_row, row_step;

  __device__ explicit Team(bool warps)
      : is_warp(warps),
        rank(int(threadIdx.x) % (warps ? warp_lanes : int(blockDim.x))),
        size(warps ? warp_lanes : int(blockDim.x)),
        first_row(warps ? global_thread() / warp_lanes : int64_t(blockIdx.x)),
        row_step(warps ? all_threads() / warp_lanes : int64_t(gridDim.x)) {}

  template <class A, class Combine> __device__ A reduce(A value, Combine combine, A neutral) const {
    return is_warp ? warp_reduce(value, combine) : block_reduce(value, combine, neutral);
  }
  template <class A> __device__ A sum(A value) const { return reduce(value, Sum{}, A(0)); }
};

/// Elements [begin, end) of a tensor and their packs.
template <int size> struct Row {
  int64_t begin, end, first_pack, pack_end;
  __device__ Row(int64_t row, int64_t n)
      : Row(row * n, row * n + n, std::integral_constant<int, size>{}) {}
  /// Takes any stretch of elements.
  __device__ Row(int64_t first, int64_t last, std::integral_constant<int, size>)
      : begin(first), end(last), first_pack(first / size), pack_end((last + size - 1) / size) {}
  __device__ bool contains(int64_t element) const { return element >= begin && element < end; }
  __device__ bool holds_pack(int64_t pack) const {
    return pack * size >= begin && pack * size + size <= end;
  }
};

/// Loads pack number `pack` of x, with `outside` for elements that are not in the row.
template <class T, int size>
__device__ __forceinline__ Pack<T, size> load_pack(const T* x, const Row<size>& row, int64_t pack,
                                                   bool aligned, T outside) {
  if (aligned && row.holds_pack(pack)) return reinterpret_cast<const Pack<T, size>*>(x)[pack];
  Pack<T, size> values;
#pragma unroll
  for (int i = 0; i < size; ++i)
    values.values[i] = row.contains(pack * size + i) ? x[pack * size + i] : outside;
  return values;
}
template <class T, int size>
__device__ __forceinline__ void widen_all(const Pack<T, size>& pack, compute_t<T> (&values)[size]) {
#pragma unroll
  for (int i = 0; i < size; ++i) values[i] = widen(pack.values[i]);
}
/// load_pack(), widened.
template <class T, int size>
__device__ __forceinline__ void load_values(const T* x, const Row<size>& row, int64_t pack,
                                            bool aligned, compute_t<T> (&values)[size],
                                            compute_t<T> outside = 0) {
  widen_all(load_pack(x, row, pack, aligned, narrow<T>(outside)), values);
}
/// Writes the part of the pack that is in the row.
template <class T, int size>
__device__ __forceinline__ void store_values(T* y, const Row<size>& row, int64_t pack, bool aligned,
                                             const compute_t<T> (&values)[size]) {
  if (aligned && row.holds_pack(pack)) {
    Pack<T, size> out;
#pragma unroll
    for (int i = 0; i < size; ++i) out.values[i] = narrow<T>(values[i]);
    reinterpret_cast<Pack<T, size>*>(y)[pack] = out;
    return;
  }
#pragma unroll
  for (int i = 0; i < size; ++i)
    if (row.contains(pack * size + i)) y[pack * size + i] = narrow<T>(values[i]);
}

/// Returns whether packs of `size` elements of these tensors are aligned (undefined ones are
/// ignored).
template <class... Rest> bool packs_aligned(int64_t size, const Rest&... tensors) {
  const auto aligned = [&](const Tensor& x) {
    return !x.defined() ||
           reinterpret_cast<uintptr_t>(x.raw_data()) % std::size_t(size * size_of(x.dtype())) == 0;
  };
  return (aligned(tensors) && ...);
}

/// A vector that applies to every row (norm weights), of dtype T or of T's compute type, or absent.
template <class T> struct RowVector {
  const T* storage = nullptr;
  const compute_t<T>* wide = nullptr;
  bool aligned = false;  // n is also a multiple of the pack: packs of rows match packs of the
                         // vector

  RowVector() = default;
  RowVector(const Tensor& x, int64_t n) {
    if (!x.defined()) return;
    if (x.dtype() == dtype_of<T>) storage = x.data<T>();
    else wide = x.data<compute_t<T>>();
    aligned = n % row_pack<T> == 0 && packs_aligned(row_pack<T>, x);
  }
  /// Loads the vector's values for pack number `pack` of the row.
  template <int size>
  __device__ void load(const Row<size>& row, int64_t pack, compute_t<T> otherwise,
                       compute_t<T> (&values)[size]) const {
    const int64_t first = pack * size - row.begin;
    if (storage) read(storage, row, first, values);
    else if (wide) read(wide, row, first, values);
    else
#pragma unroll
      for (int i = 0; i < size; ++i) values[i] = otherwise;
  }

 private:
  template <class U, int size>
  __device__ void read(const U* data, const Row<size>& row, int64_t first,
                       compute_t<T> (&values)[size]) const {
    if (aligned && first >= 0 && first + size <= row.end - row.begin) {
      return widen_all(*reinterpret_cast<const Pack<U, size>*>(data + first), values);
    }
#pragma unroll
    for (int i = 0; i < size; ++i)
      values[i] = first + i >= 0 && first + i < row.end - row.begin ? widen(data[first + i])
                                                                    : compute_t<T>(0);
  }
};

/// The launch of the kernels over rows.
struct RowLaunch {
  LaunchShape shape{};
  bool warps = false;  // a warp per row, else a block
  bool held = false;   // the row fits the registers of its threads
};
/// For rows of n elements in packs of `size`, of which a thread can hold `most_held`.
inline RowLaunch row_launch(const Context& context, int64_t rows, int64_t n, int64_t size,
                            int64_t most_held) {
  const int64_t packs = n / size + (n % size == 0 ? 0 : 2);
  if (packs <= warp_lanes * most_held)
    return {{blocks_for(rows, block_threads / warp_lanes, int64_t(context.multiprocessors()) * 64)},
            true,
            true};
  constexpr int64_t warp = warp_lanes, most = most_row_threads;
  const int64_t wanted = (packs + warp * most_held - 1) / (warp * most_held) * warp;
  const int64_t threads = std::min(wanted, most);
  return {shape_for_rows(context, rows, unsigned(threads)), false, packs <= threads * most_held};
}

// log(sum(exp(x))) in one pass: the sum so far is rescaled when the largest value grows (Milakov &
// Gimelshein 2018). It stays in two parts, shift + log(sum): adding them would lose the logarithm
// if values are huge.

template <class C> struct ExpSum {
  C largest = -std::numeric_limits<C>::infinity(), shift = 0, sum = 0;

  /// Infinite values are not subtracted: exp(inf) and exp(-inf) are correct without it.
  static __device__ C finite_or_zero(C value) {
    return math::abs(value) <= std::numeric_limits<C>::max() ? value : C(0);
  }
  template <int size> __device__ void add(const C (&values)[size]) {
    C most = values[0];
#pragma unroll
    for (int i = 1; i < size; ++i) most = values[i] > most || most != most ? values[i] : most;
    if (most > largest) {
      largest = most;
      rescale(finite_or_zero(largest));
    }
#pragma unroll
    for (int i = 0; i < size; ++i) sum += math::exp(values[i] - shift);
  }
  /// Joins the sums of all threads of the row; each of them gets the result.
  __device__ void join(const Team& team) {
    largest = team.reduce(largest, Max{}, -std::numeric_limits<C>::infinity());
    rescale(finite_or_zero(largest));
    sum = team.sum(sum);
  }
  __device__ C log_sum() const { return math::log(sum); }
  /// Makes the sum NaN if softmax is NaN: with +inf somewhere, or -inf everywhere.
  __device__ void refuse_infinite() {
    if (!(sum > C(0) && sum <= std::numeric_limits<C>::max()))
      sum = std::numeric_limits<C>::quiet_NaN();
  }

 private:
  __device__ void rescale(C to) {
    if (sum != C(0)) sum *= math::exp(shift - to);
    shift = to;
  }
};

}  // namespace halftone::cuda
