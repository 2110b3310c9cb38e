// Rows of a table by index, and their gradient. An index out of range is reported; it reads as
// zeros and adds nothing. The gradient sums rows of dy in a fixed order: positions are sorted by
// table row (table_sort.cu) and cut into stretches of equal length. Table rows that cross a cut are
// completed from the partial sums of their stretches.
#include <limits>

#include <halftone/backends/cuda/conversion.h>
#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/rows.h>
#include <halftone/backends/cuda/table.h>

namespace halftone {

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
