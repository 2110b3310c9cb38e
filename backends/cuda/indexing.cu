// Sorts positions by their table row, for the gradient of an embedding: each row of the table then
// is one stretch, summed in the order of positions, independent of threads.
#include <bit>
#include <cstdint>
#include <limits>

#include <halftone/backends/cuda/context.h>
#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/launch.h>
#include <halftone/backends/cuda/rows.h>
#include <halftone/backends/cuda/values.h>
#include <halftone/core/factory.h>

namespace halftone::cuda {

struct Pick {
  int64_t row, position;
};

/// Sorts picks[0 .. count) by row, 0 <= row <= most_row (all three as unsigned numbers, so that any
/// 64 bits can be sorted); equal rows keep their order. `spare` has the same size; returns the one
/// of the two that has the result.
Pick* sort_picks(const Context& context, Pick* picks, Pick* spare, int64_t count, int64_t most_row);

}  // namespace halftone::cuda

// Gathers elements by indices along one dimension, and its adjoint, which sums in a fixed order:
// positions in y are numbered, and their terms are added up as rows of a table with one column
// (below). An index out of range is reported; it reads as zero and adds nothing.

namespace halftone {

namespace cuda {
namespace {

/// Word is an unsigned integer of the element's size. The layout is that of y, index and x, with
/// stride 0 in the dimension that indices replace.
template <class Word>
__global__ void gather_along_kernel(Layout<3> layout, bool small, const Word* x, int64_t size,
                                    int64_t stride, const int64_t* index, Fault* fault, Word* y) {
  for (int64_t turn = global_thread(); turn < layout.turns; turn += all_threads()) {
    const Places<3> at = layout.at_turn(turn, small);
    const int64_t i = index[at.of[1]];
    const bool valid = i >= 0 && i < size;
    y[at.of[0]] = valid ? x[at.of[2] + i * stride] : Word{};
    if (!valid) report(fault, FaultKind::gather_index, i, size);
  }
}

constexpr int64_t no_place = -1;

/// Computes the number of each element's position in a contiguous y.
__global__ void places_kernel(Layout<3> layout, bool small, int64_t size, int64_t stride,
                              const int64_t* index, Fault* fault, int64_t* places) {
  for (int64_t turn = global_thread(); turn < layout.turns; turn += all_threads()) {
    const Places<3> at = layout.at_turn(turn, small);
    const int64_t i = index[at.of[1]];
    const bool valid = i >= 0 && i < size;
    places[at.of[0]] = valid ? at.of[2] + i * stride : no_place;
    if (!valid) report(fault, FaultKind::gather_index, i, size);
  }
}

Strides without(Strides strides, int dim) {
  strides[dim] = 0;
  return strides;
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void CudaBackend::gather(const Tensor& x, int dim, const Tensor& index, Tensor& y) {
  const Layout<3> layout(y.shape(), {y.strides(), index.strides(), without(x.strides(), dim)});
  if (layout.turns == 0) return;
  const auto run = [&]<class Word>(Word) {
    launch(context_, gather_along_kernel<Word>, shape_for(context_, layout.turns), layout,
           layout.is_small(), reinterpret_cast<const Word*>(x.raw_data()), x.shape()[dim],
           x.strides()[dim], index.data<int64_t>(), context_.fault(),
           reinterpret_cast<Word*>(y.raw_data()));
  };
  switch (size_of(y.dtype())) {
    case 1: return run(uint8_t{});
    case 2: return run(uint16_t{});
    case 4: return run(uint32_t{});
    default: return run(uint64_t{});
  }
}

void CudaBackend::scatter_add(const Tensor& x, int dim, const Tensor& index, Tensor& y) {
  const int64_t count = x.numel();
  if (count == 0) return;
  const Tensor places = scratch(context_, {count}, i64);
  const Strides in_y = contiguous_strides(y.shape());
  const Layout<3> layout(x.shape(),
                         {contiguous_strides(x.shape()), index.strides(), without(in_y, dim)});
  launch(context_, places_kernel, shape_for(context_, count), layout, layout.is_small(),
         y.shape()[dim], in_y[dim], index.data<int64_t>(), context_.fault(),
         places.data<int64_t>());
  if (y.numel() == 0) return;  // every index was reported
  const DType wide = is_floating(y.dtype()) ? statistics_of(y) : f64;
  Tensor values = scratch(context_, x.shape(), wide), sums = scratch(context_, y.shape(), wide),
         total = scratch(context_, y.shape(), wide);
  copy(x, values), copy(y, total);
  const auto column = [](const Tensor& t) { return t.view_as({t.numel(), 1}, {1, 1}, t.offset()); };
  Tensor table = column(sums);
  scatter_add_rows(column(values), places, no_place, table);
  accumulate(sums, total);
  if (is_floating(y.dtype())) return copy(total, y);
  Tensor whole = scratch(context_, y.shape(), i64);  // short integers keep its last bits
  copy(total, whole), copy(whole, y);
}

// The order of each row's elements. All elements are sorted at once by a key whose bits have the
// order of the values, then, stably, by their row: two runs of the sort that embedding gradients
// use.

namespace cuda {
namespace {

/// Returns bits that ascend with the value; -0 equals 0, NaN is above all.
template <class C> __device__ auto key_of(C value) {
  if constexpr (std::is_floating_point_v<C>) {
    using Bits = std::conditional_t<sizeof(C) == 4, uint32_t, uint64_t>;
    constexpr Bits sign = Bits(1) << (8 * sizeof(C) - 1);
    if (value != value) return Bits(~Bits(0));
    const Bits bits = std::bit_cast<Bits>(value == C(0) ? C(0) : value);
    return Bits(bits & sign ? ~bits : bits | sign);
  } else {
    return uint64_t(value) ^ uint64_t(1) << 63;
  }
}

template <class C>
__global__ void keys_kernel(Operand x, int64_t count, bool descending, Pick* picks) {
  for (int64_t i = global_thread(); i < count; i += all_threads()) {
    const auto key = key_of(load_as<C>(x, i));
    using Key = std::remove_const_t<decltype(key)>;
    picks[i] = {int64_t(uint64_t(descending ? Key(~key) : key)), i};
  }
}

__global__ void by_row_kernel(Pick* picks, int64_t count, int64_t n) {
  for (int64_t i = global_thread(); i < count; i += all_threads())
    picks[i].row = picks[i].position / n;
}

__global__ void order_kernel(const Pick* picks, int64_t count, int64_t n, int64_t* index) {
  for (int64_t i = global_thread(); i < count; i += all_threads()) index[i] = picks[i].position % n;
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void CudaBackend::argsort(const Tensor& x, bool descending, Tensor& index) {
  const int64_t count = x.numel();
  if (count == 0) return;
  const int64_t n = x.size(-1), rows = count / n;
  const Tensor memory = scratch(context_, {2, count, int64_t(sizeof(Pick))}, DType::u8);
  Pick* const picks = reinterpret_cast<Pick*>(memory.raw_data());
  const LaunchShape shape = shape_for(context_, count);
  const auto keys = [&](auto kernel) {
    launch(context_, kernel, shape, Operand(x), count, descending, picks);
  };
  const bool narrow = is_floating(x.dtype()) && x.dtype() != f64;
  if (narrow) keys(keys_kernel<float>);
  else if (is_floating(x.dtype())) keys(keys_kernel<double>);
  else keys(keys_kernel<int64_t>);
  const int64_t largest = narrow ? int64_t(0xffffffffu) : int64_t(-1);  // all bits of the key
  Pick* sorted = sort_picks(context_, picks, picks + count, count, largest);
  launch(context_, by_row_kernel, shape, sorted, count, n);
  sorted = sort_picks(context_, sorted, sorted == picks ? picks + count : picks, count, rows - 1);
  launch(context_, order_kernel, shape, sorted, count, n, index.data<int64_t>());
}

// Rows of a table by index, and their gradient. An index out of range is reported; it reads as
// zeros and adds nothing. The gradient sums rows of dy in a fixed order: positions are sorted by
// table row (see above) and cut into stretches of equal length. Table rows that cross a cut are
// completed from the partial sums of their stretches.

namespace cuda {
namespace {

/// Rows of `words` words; y[i] = table[indices[i]].
template <class Word>
__global__ void gather_kernel(const Word* table, int64_t table_rows, int64_t words,
                              const int64_t* indices, int64_t count, Fault* fault, Word* y) {
  for (int64_t k = global_thread(); k < count * words; k += all_threads()) {
    const int64_t position = k / words, word = k - position * words, row = indices[position];
    const bool valid = row >= 0 && row < table_rows;
    y[k] = valid ? table[row * words + word] : Word{};
    if (!valid && word == 0) report(fault, FaultKind::embedding_index, row, table_rows);
  }
}

/// Positions that add nothing get the row after the table's last.
__global__ void pick_kernel(const int64_t* indices, int64_t count, int64_t table_rows, int64_t skip,
                            Fault* fault, Pick* picks) {
  for (int64_t i = global_thread(); i < count; i += all_threads()) {
    const int64_t row = indices[i];
    const bool valid = row >= 0 && row < table_rows;
    if (!valid && row != skip) report(fault, FaultKind::embedding_index, row, table_rows);
    picks[i] = {valid && row != skip ? row : table_rows, i};
  }
}

constexpr int64_t stretch_length = 32;

/// The inputs and outputs of the sums of stretches. `left`: [stretches, 2, width], the sums of the
/// row in whose middle a stretch begins, and of the row that it does not finish.
template <class T, class U> struct ScatterSums {
  using C = compute_t<T>;
  const Pick* picks;
  int64_t count, table_rows, width;
  const U* dy;
  C* left;
  T* dtable;

  __device__ int64_t stretches() const { return (count + stretch_length - 1) / stretch_length; }
  /// Returns whether sorted positions i - 1 and i both exist and have one table row.
  __device__ bool joins(int64_t i) const {
    return i > 0 && i < count && picks[i].row == picks[i - 1].row;
  }
  __device__ C* left_of(int64_t stretch, int slot, int64_t column) const {
    return left + (stretch * 2 + slot) * width + column;
  }
  template <int size>
  __device__ void store_row(int64_t row, int64_t column, const C (&sums)[size]) const {
    Pack<T, size> out;
#pragma unroll
    for (int i = 0; i < size; ++i) out.values[i] = narrow<T>(sums[i]);
    *reinterpret_cast<Pack<T, size>*>(dtable + row * width + column) = out;
  }
};

/// A thread takes `size` columns of one stretch.
template <int size, class T, class U>
__global__ void __launch_bounds__(block_threads) scatter_kernel(ScatterSums<T, U> s) {
  using C = compute_t<T>;
  const int64_t packs = s.width / size;
  for (int64_t k = global_thread(); k < s.stretches() * packs; k += all_threads()) {
    const int64_t stretch = k / packs, column = k % packs * size;
    const int64_t begin = stretch * stretch_length;
    const int64_t end = begin + stretch_length < s.count ? begin + stretch_length : s.count;
    C sums[size] = {};
    for (int64_t i = begin; i < end; ++i) {
      const Pick pick = s.picks[i];
      if (pick.row == s.table_rows) break;  // the remaining picks add nothing
      const auto loaded =
          *reinterpret_cast<const Pack<U, size>*>(s.dy + pick.position * s.width + column);
#pragma unroll
      for (int j = 0; j < size; ++j) sums[j] += widen(loaded.values[j]);
      if (i + 1 < end && s.joins(i + 1)) continue;
      const bool from_before = s.joins(begin) && s.picks[begin].row == pick.row;
      if (from_before || s.joins(i + 1)) {
        C* const to = s.left_of(stretch, from_before ? 0 : 1, column);
        for (int j = 0; j < size; ++j) to[j] = sums[j];
      } else {
        s.store_row(pick.row, column, sums);
      }
      for (int j = 0; j < size; ++j) sums[j] = 0;
    }
  }
}

/// Completes the row that begins in a stretch and continues after it.
template <int size, class T, class U>
__global__ void __launch_bounds__(block_threads) scatter_rest_kernel(ScatterSums<T, U> s) {
  using C = compute_t<T>;
  const int64_t packs = s.width / size;
  for (int64_t k = global_thread(); k < s.stretches() * packs; k += all_threads()) {
    const int64_t stretch = k / packs, column = k % packs * size;
    const int64_t begin = stretch * stretch_length;
    int64_t next = begin + stretch_length;
    if (!s.joins(next)) continue;
    const int64_t row = s.picks[next].row;
    if (row == s.table_rows || (s.joins(begin) && s.picks[begin].row == row)) continue;
    C sums[size];
    for (int j = 0; j < size; ++j) sums[j] = s.left_of(stretch, 1, column)[j];
    for (int64_t later = stretch + 1; s.joins(next) && s.picks[next].row == row;
         ++later, next += stretch_length)
      for (int j = 0; j < size; ++j) sums[j] += s.left_of(later, 0, column)[j];
    s.store_row(row, column, sums);
  }
}

/// Returns x, or a contiguous copy with that dtype.
Tensor contiguous_as(Backend& backend, const Context& context, const Tensor& x, DType dtype) {
  if (x.is_contiguous() && x.dtype() == dtype) return x;
  Tensor copy = scratch(context, x.shape(), dtype);
  backend.copy(x, copy);
  return copy;
}

template <class T, class U>
void scatter(const Context& context, const Tensor& dy, const Pick* picks, int64_t count,
             Tensor& dtable) {
  using C = compute_t<T>;
  const int64_t rows = dtable.size(0), width = dtable.numel() / rows;
  const int64_t stretches = blocks_for(count, stretch_length);
  Tensor left = scratch(context, {stretches, 2, width}, dtype_of<C>);
  const ScatterSums<T, U> sums{picks,          count,           rows, width, dy.data<U>(),
                               left.data<C>(), dtable.data<T>()};
  constexpr int size = pack_size<T>;
  const auto run = [&]<int n>(std::integral_constant<int, n>) {
    const LaunchShape shape = shape_for(context, stretches * (width / n));
    launch(context, scatter_kernel<n, T, U>, shape, sums);
    launch(context, scatter_rest_kernel<n, T, U>, shape, sums);
  };
  if (width % size == 0 && packs_aligned(size, dy, dtable))
    run(std::integral_constant<int, size>{});
  else run(std::integral_constant<int, 1>{});
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void CudaBackend::gather_rows(const Tensor& table_in, const Tensor& indices_in, Tensor& y) {
  if (y.numel() == 0) return;
  const Tensor table = contiguous_as(*this, context_, table_in, y.dtype());
  const Tensor indices = contiguous_as(*this, context_, indices_in, i64);
  Tensor rows = y.is_contiguous() ? y : scratch(context_, y.shape(), y.dtype());
  const int64_t count = indices.numel(), bytes = y.bytes() / count;
  const auto run = [&]<class Word>(Word) {
    const int64_t words = bytes / int64_t(sizeof(Word));
    launch(context_, gather_kernel<Word>, shape_for(context_, count * words),
           reinterpret_cast<const Word*>(table.raw_data()), table.size(0), words,
           indices.data<int64_t>(), count, context_.fault(),
           reinterpret_cast<Word*>(rows.raw_data()));
  };
  const auto fits = [&](int64_t size) {
    return bytes % size == 0 && packs_aligned(size / size_of(y.dtype()), table, rows);
  };
  if (fits(16)) run(Pack<uint32_t, 4>{});
  else if (size_of(y.dtype()) == 8) run(uint64_t{});
  else if (size_of(y.dtype()) == 4) run(uint32_t{});
  else if (size_of(y.dtype()) == 2) run(uint16_t{});
  else run(uint8_t{});
  if (!y.is_contiguous()) copy(rows, y);
}

void CudaBackend::scatter_add_rows(const Tensor& dy_in, const Tensor& indices_in, int64_t skip,
                                   Tensor& dtable) {
  fill(0, dtable);
  if (dy_in.numel() == 0) return;
  const Tensor dy = contiguous_as(*this, context_, dy_in, dy_in.dtype());
  const Tensor indices = contiguous_as(*this, context_, indices_in, i64);
  const int64_t count = indices.numel(), rows = dtable.size(0);
  const Tensor memory = scratch(context_, {2, count, int64_t(sizeof(Pick))}, DType::u8);
  Pick* const picks = reinterpret_cast<Pick*>(memory.raw_data());
  launch(context_, pick_kernel, shape_for(context_, count), indices.data<int64_t>(), count, rows,
         skip, context_.fault(), picks);
  if (dtable.numel() == 0) return;  // every index was reported
  const Pick* const sorted = sort_picks(context_, picks, picks + count, count, rows);
  const bool direct = dtable.is_contiguous() &&
                      visit_with_wide(dtable.dtype(), dy.dtype(), [&]<class T, class U>() {
                        scatter<T, U>(context_, dy, sorted, count, dtable);
                      });
  if (direct) return;
  const bool wide = !is_floating(dtable.dtype()) || !is_floating(dy.dtype());
  const DType dtype = wide ? f64 : statistics_of(dy, dtable);
  Tensor sums = scratch(context_, dtable.shape(), dtype);
  fill(0, sums);
  visit_floating(dtype, "embedding", [&]<class T>() {
    if constexpr (sizeof(T) >= 4)
      scatter<T, T>(context_, converted(*this, dy, dtype), sorted, count, sums);
  });
  copy(sums, dtable);
}

}  // namespace halftone

// A stable radix sort of picks, eight bits of the row at a time. Blocks take tiles of neighbors and
// count the digits of their tile. All counts are summed up in the order (digit, tile), and each
// block writes its picks after those of earlier tiles. Inside a tile, the rank of a pick among
// equal digits comes from ballots and from counts per warp, so nothing depends on the order of
// threads.

namespace halftone::cuda {

namespace {

constexpr int digit_bits = 8, digits = 1 << digit_bits, turns_per_tile = 4;
constexpr int64_t tile_length = int64_t(block_threads) * turns_per_tile;
static_assert(digits == int(block_threads), "thread d looks after digit d");

__device__ int digit_of(const Pick& pick, int shift) {
  return int(pick.row >> shift & (digits - 1));
}

/// Computes counts[digit * tiles + tile].
__global__ void __launch_bounds__(block_threads)
    count_digits_kernel(const Pick* picks, int64_t count, int shift, int64_t tiles,
                        int64_t* counts) {
  __shared__ int of_digits[digits];
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    of_digits[threadIdx.x] = 0;
    __syncthreads();
    for (int turn = 0; turn < turns_per_tile; ++turn) {
      const int64_t i = tile * tile_length + turn * int64_t(block_threads) + threadIdx.x;
      if (i < count) atomicAdd(&of_digits[digit_of(picks[i], shift)], 1);  // integers: any order
    }
    __syncthreads();
    counts[threadIdx.x * tiles + tile] = of_digits[threadIdx.x];
    __syncthreads();  // of_digits may be written again
  }
}

/// Replaces each count by the sum of those before it; one block.
__global__ void __launch_bounds__(block_threads) sum_up_kernel(int64_t* counts, int64_t n) {
  constexpr int warps = int(block_threads) / warp_lanes;
  __shared__ int64_t of_warps[warps];
  const int thread = int(threadIdx.x), lane = thread % warp_lanes, warp = thread / warp_lanes;
  int64_t carried = 0;
  for (int64_t first = 0; first < n; first += block_threads) {
    const int64_t i = first + thread, own = i < n ? counts[i] : 0;
    int64_t sum = own;
    for (int by = 1; by < warp_lanes; by *= 2) {
      const int64_t before = __shfl_up_sync(whole_warp, sum, unsigned(by));
      if (lane >= by) sum += before;
    }
    if (lane == warp_lanes - 1) of_warps[warp] = sum;
    __syncthreads();
    int64_t before = carried;
    for (int w = 0; w < warps; ++w) {
      if (w < warp) before += of_warps[w];
      carried += of_warps[w];
    }
    if (i < n) counts[i] = before + sum - own;
    __syncthreads();  // of_warps may be written again
  }
}

/// Returns the lanes whose digit equals this lane's; all lanes of the warp must call it.
__device__ unsigned lanes_alike(int digit, bool exists) {
  unsigned alike = __ballot_sync(whole_warp, exists);
  for (int bit = 0; bit < digit_bits; ++bit) {
    const bool set = (digit >> bit & 1) != 0;
    const unsigned have = __ballot_sync(whole_warp, set);
    alike &= set ? have : ~have;
  }
  return alike;
}

__global__ void __launch_bounds__(block_threads)
    place_picks_kernel(const Pick* picks, int64_t count, int shift, int64_t tiles,
                       const int64_t* starts, Pick* sorted) {
  constexpr int warps = int(block_threads) / warp_lanes;
  __shared__ int64_t next[digits];  // position of the next pick of a digit
  __shared__ int of_warps[warps][digits];
  const int thread = int(threadIdx.x), lane = thread % warp_lanes, warp = thread / warp_lanes;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    next[thread] = starts[thread * tiles + tile];
    for (int turn = 0; turn < turns_per_tile; ++turn) {
      for (int w = 0; w < warps; ++w) of_warps[w][thread] = 0;
      __syncthreads();
      const int64_t i = tile * tile_length + turn * int64_t(block_threads) + thread;
      const bool exists = i < count;
      const Pick pick = exists ? picks[i] : Pick{0, 0};
      const int digit = digit_of(pick, shift);
      const unsigned alike = lanes_alike(digit, exists);
      const int rank = __popc(alike & ((1u << lane) - 1));
      if (exists && rank == 0) of_warps[warp][digit] = __popc(alike);
      __syncthreads();
      if (exists) {
        int64_t to = next[digit] + rank;
        for (int w = 0; w < warp; ++w) to += of_warps[w][digit];
        sorted[to] = pick;
      }
      __syncthreads();
      for (int w = 0; w < warps; ++w) next[thread] += of_warps[w][thread];
    }
    __syncthreads();  // next may be written again
  }
}

}  // namespace

Pick* sort_picks(const Context& context, Pick* picks, Pick* spare, int64_t count,
                 int64_t most_row) {
  const int64_t tiles = blocks_for(count, tile_length);
  const Tensor memory = scratch(context, {digits * tiles}, i64);
  int64_t* const counts = reinterpret_cast<int64_t*>(memory.raw_data());
  const LaunchShape shape{blocks_for(tiles, 1), block_threads};
  const int bits = std::bit_width(uint64_t(most_row));
  for (int shift = 0; shift < bits; shift += digit_bits) {
    launch(context, count_digits_kernel, shape, picks, count, shift, tiles, counts);
    launch(context, sum_up_kernel, {1, block_threads}, counts, digits * tiles);
    launch(context, place_picks_kernel, shape, picks, count, shift, tiles, counts, spare);
    std::swap(picks, spare);
  }
  return picks;
}

}  // namespace halftone::cuda
