// Connects tensors and the float kernels: which kernels, operands as floats in memory, and loops
// that share them out.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <omp.h>

#include <halftone/backends/cpu/simd/kernels.h>
#include <halftone/backends/reference/loops.h>
#include <halftone/core/backend.h>
#include <halftone/core/factory.h>

namespace halftone {

// The instruction set of the CPU backend: the best that the CPU has, capped by HALFTONE_MAX_ISA
// (baseline, avx2, avx512, avx512_bf16 or amx), so that any machine can test the code of smaller
// ones.

/// Returns the SIMD kernels in use. The instruction set is decided once; the order of sums is that
/// of portable_bits().
const simd::Kernels& simd_kernels();
/// Returns the tables that this build has and this CPU supports, smallest first; HALFTONE_MAX_ISA
/// does not limit them. For tests.
std::vector<const simd::Kernels*> supported_simd_kernels();
/// Returns those of portable bits (core/device.h), one of each instruction set. For tests.
std::vector<const simd::Kernels*> portable_simd_kernels();
/// Return whether the two products of simd/panels.h may be called. The first is false where f32
/// products are faster, unless HALFTONE_MAX_ISA names the set.
bool has_bf16_products();
bool use_amx();
/// Returns "avx512_bf16 and amx kernels", for people.
std::string kernels_in_use();

}  // namespace halftone

// Connects tensors and the float kernels. An operand that is f32 and contiguous is used in place.
// Others are first copied into a buffer of block_length floats: widened if short, spread if
// broadcast, gathered if strided.

namespace halftone::cpu {

using reference::block_length;
using reference::LoopNest;
using reference::Offsets;
using reference::parallel_pieces;
using reference::parallel_tasks;
using reference::Workspace;

/// Returns whether the float kernels support x: f32 and the two 16-bit formats.
inline bool is_f32_or_short(const Tensor& x) {
  return x.dtype() == f32 || x.dtype() == bf16 || x.dtype() == f16;
}
template <class... T> bool all_f32_or_short(const T&... x) {
  return ((!x.defined() || is_f32_or_short(x)) && ...);
}

/// Returns f16 operands widened as a whole, in their memory order; packing widens bf16.
inline Tensor without_f16(const Tensor& x) {
  if (x.dtype() != f16) return x;
  const MemoryScope scope(MemoryUse::workspace);
  Tensor wide =
      empty_strided(x.shape(), strides_in_order_of(x.shape(), x.strides()), f32, x.device());
  backend_for(x).copy(x, wide);
  return wide;
}

inline void widen(const Tensor& x, int64_t offset, int64_t count, float* y) {
  const simd::Kernels& k = simd_kernels();
  if (x.dtype() == bf16)
    k.widen_bf16(reinterpret_cast<const uint16_t*>(x.data<BFloat16>() + offset), y, count);
  else if (x.dtype() == f16)
    k.widen_f16(reinterpret_cast<const uint16_t*>(x.data<Float16>() + offset), y, count);
  else reference::load(x, offset, count, y);
}
inline void narrow(const float* x, int64_t count, const Tensor& y, int64_t offset) {
  const simd::Kernels& k = simd_kernels();
  if (y.dtype() == bf16)
    k.narrow_bf16(x, reinterpret_cast<uint16_t*>(y.data<BFloat16>() + offset), count);
  else if (y.dtype() == f16)
    k.narrow_f16(x, reinterpret_cast<uint16_t*>(y.data<Float16>() + offset), count);
  else if (y.dtype() == f32) std::copy_n(x, count, y.data<float>() + offset);
  else reference::store(x, count, y, offset);
}

/// Returns elements offset, offset + step, ... of x as `count` contiguous floats: in place, or in
/// `buffer`.
inline const float* floats(const Tensor& x, int64_t offset, int64_t step, int64_t count,
                           float* buffer) {
  if (step == 1 && x.dtype() == f32) return x.data<float>() + offset;
  if (step == 1) {
    widen(x, offset, count, buffer);
  } else if (step == 0) {
    float value;
    reference::load(x, offset, 1, &value);
    std::fill_n(buffer, count, value);
  } else {
    reference::load(x, offset, step, count, buffer);
  }
  return buffer;
}

/// The destination of `count` results for y: y itself, or a buffer that finish() rounds into y.
class Output {
 public:
  Output(const Tensor& y, int64_t offset, int64_t step, int64_t count, float* buffer)
      : y_(y),
        offset_(offset),
        step_(step),
        count_(count),
        data_(step == 1 && y.dtype() == f32 ? y.data<float>() + offset : buffer),
        direct_(data_ != buffer) {}
  float* data() { return data_; }
  void finish() {
    if (direct_) return;
    if (step_ == 1) narrow(data_, count_, y_, offset_);
    else reference::store(data_, count_, y_, offset_, step_);
  }

 private:
  const Tensor& y_;
  int64_t offset_, step_, count_;
  float* data_;
  bool direct_;
};

/// Calls kernel(x..., y, count) over runs of strided tensors, in parallel; an undefined input is
/// read as zeros.
template <class Kernel, class... Inputs>
void staged(const Kernel& kernel, const Tensor& y, const Inputs&... inputs) {
  constexpr std::size_t count_of_inputs = sizeof...(inputs);
  const LoopNest<int(count_of_inputs) + 1> nest(y, inputs...);
  nest.parallel_runs([&](const auto& offsets, const auto& steps, int64_t count) {
    alignas(64) float buffers[count_of_inputs + 1][block_length];
    const Tensor* tensors[] = {&inputs...};
    const float* data[count_of_inputs];
    for (std::size_t t = 0; t < count_of_inputs; ++t) {
      if (tensors[t]->defined())
        data[t] = floats(*tensors[t], offsets[t + 1], steps[t + 1], count, buffers[t]);
      else data[t] = std::fill_n(buffers[t], count, 0.0f) - count;
    }
    Output output(y, offsets[0], steps[0], count, buffers[count_of_inputs]);
    [&]<std::size_t... I>(std::index_sequence<I...>) { kernel(data[I]..., output.data(), count); }
    (std::make_index_sequence<count_of_inputs>{});
    output.finish();
  });
}

/// A contiguous tensor (or part of it) as contiguous floats: in place if f32, otherwise widened
/// into a workspace.
class WholeInput {
 public:
  explicit WholeInput(const Tensor& x)
      : copy_(!x.defined() || x.dtype() == f32 ? 0 : x.numel()),
        data_(!x.defined()       ? nullptr
              : x.dtype() == f32 ? x.data<float>()
                                 : copy_.data()) {
    if (copy_.size() == 0) return;
    float* to = copy_.data();
    parallel_pieces(x.numel(), reference::grain_length,
                    [&](int64_t begin, int64_t end) { widen(x, begin, end - begin, to + begin); });
  }
  const float* data() const { return data_; }

 private:
  Workspace<float> copy_;
  const float* data_;
};

/// The same for results; the destructor rounds them into y.
class WholeOutput {
 public:
  explicit WholeOutput(const Tensor& y)
      : y_(y),
        copy_(!y.defined() || y.dtype() == f32 ? 0 : y.numel()),
        data_(!y.defined()       ? nullptr
              : y.dtype() == f32 ? y.data<float>()
                                 : copy_.data()) {}
  ~WholeOutput() {
    if (copy_.size() == 0) return;
    const float* from = copy_.data();
    parallel_pieces(y_.numel(), reference::grain_length, [&](int64_t begin, int64_t end) {
      narrow(from + begin, end - begin, y_, begin);
    });
  }
  WholeOutput(const WholeOutput&) = delete;
  WholeOutput& operator=(const WholeOutput&) = delete;
  float* data() const { return data_; }

 private:
  const Tensor& y_;
  Workspace<float> copy_;
  float* data_;
};

// Splits rows for sums that must not depend on the number of threads.

/// Returns the rows of n elements per task: a number that depends only on sizes.
inline int64_t group_of(int64_t rows, int64_t n) {
  const int64_t by_size = std::max<int64_t>(1, reference::grain_length / std::max<int64_t>(n, 1));
  return std::max(by_size, (rows + 63) / 64);
}

// The loop of resizing and pooling: each thread gets some rows of pixels of NHWC images.

/// Calls body(image, row, scratch) for all rows of images, in parallel; scratch has `scratch_size`
/// floats per thread.
template <class Body>
void each_image_row(int64_t images, int64_t rows, int64_t scratch_size, const Body& body) {
  constexpr int64_t rows_of_task = 8;
  parallel_pieces(images * rows, rows_of_task, [&](int64_t begin, int64_t end) {
    Workspace<float> scratch(scratch_size);
    for (int64_t row = begin; row < end; ++row) body(row / rows, row % rows, scratch.data());
  });
}

// Loops over many tensors at once: the pieces of all tensors are one list of tasks, so that many
// small tensors and few large ones keep all threads equally busy. Pieces and results do not depend
// on the number of threads.

/// Elements of a piece.
inline constexpr int64_t list_piece = reference::grain_length;

/// The most tensors in one list: their sizes are on the stack, because a step must not allocate.
inline constexpr std::size_t list_length = 256;

/// Calls body(some) for one list after the other.
template <class T, class Body> void in_lists(std::span<T> all, const Body& body) {
  for (std::size_t first = 0; first < all.size(); first += list_length)
    body(all.subspan(first, std::min(list_length, all.size() - first)));
}

/// The sizes of the tensors of a list, for parallel_list; 0 for those that other code handles.
class ListSizes {
 public:
  /// size(item): the number of elements, or nullopt.
  template <class T, class Size>
  ListSizes(std::span<T> items, const Size& size) : count_(items.size()) {
    for (std::size_t i = 0; i < count_; ++i) sizes_[i] = size(items[i]).value_or(not_served);
  }
  std::size_t count() const { return count_; }
  bool served(std::size_t i) const { return sizes_[i] != not_served; }
  int64_t operator[](std::size_t i) const { return served(i) ? sizes_[i] : 0; }
  int64_t pieces() const {
    int64_t pieces = 0;
    for (std::size_t i = 0; i < count_; ++i) pieces += reference::pieces_of((*this)[i], list_piece);
    return pieces;
  }
  int64_t total() const {
    int64_t total = 0;
    for (std::size_t i = 0; i < count_; ++i) total += (*this)[i];
    return total;
  }

 private:
  static constexpr int64_t not_served = -1;
  std::array<int64_t, list_length> sizes_;
  std::size_t count_;
};

/// Calls body(tensor, begin, end, number of the piece) for all pieces of a list, in parallel. Each
/// thread takes neighboring pieces with about the same number of elements.
template <class Body> void parallel_list(const ListSizes& sizes, const Body& body) {
  constexpr int64_t worth_threads = 4 * list_piece;
  const int64_t total = sizes.total();
  reference::Tasks tasks(reference::pieces_of(total, list_piece));
  reference::RegionError error;
#pragma omp parallel if (total > reference::worth_waking(worth_threads))
  {
    // A task: the pieces that begin in one stretch of the list. A thread's tasks ascend, so it goes
    // through the list once.
    std::size_t tensor = 0;
    int64_t number = 0, before = 0, begin = 0;
    tasks.each([&](int64_t task) {
      while (tensor < sizes.count()) {
        const int64_t n = sizes[tensor];
        for (; begin < n; begin += list_piece, ++number) {
          const int64_t at = (before + begin) / list_piece;
          if (at > task) return;
          if (at == task)
            error.keep([&] { body(tensor, begin, std::min(n, begin + list_piece), number); });
        }
        before += n, begin = 0, ++tensor;
      }
    });
  }
  error.rethrow();
}

}  // namespace halftone::cpu
