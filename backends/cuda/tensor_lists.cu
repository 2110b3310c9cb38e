// Gradients of all parameters at once: scaling, the check for infinities and NaN, the sum of
// squares. Dense tensors use lists; others are handled one by one, with their strides.
#include <halftone/backends/cuda/block.h>
#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/layout.h>
#include <halftone/backends/cuda/tensor_list.h>
#include <halftone/backends/cuda/values4.h>
#include <halftone/core/math.h>

namespace halftone {

namespace cuda {
namespace {

struct ListedTensor {
  Operand x;
  int64_t count;
  bool aligned;
};
template <int capacity> using TensorList = ItemList<ListedTensor, capacity>;

template <class C> __device__ bool is_finite(C value) { return value - value == C(0); }

/// C is double if any tensor is f64.
template <class C> __device__ C factor_value(const Operand& factor) {
  return factor.data ? load_as<C>(factor, 0) : C(1);
}

/// Checks elements before scaling (if `found` is not null), then multiplies them.
template <class C, int capacity>
__global__ void scale_kernel(TensorList<capacity> list, Operand factor, float* found) {
  const C scale = factor_value<C>(factor);
  bool infinite = false;
  for (int64_t chunk = blockIdx.x; chunk < list.chunks(); chunk += gridDim.x) {
    const int item = list.item_of(chunk);
    const ListedTensor& t = list.items[item];
    const int64_t begin = (chunk - list.first_chunk[item]) * chunk_length;
    const int64_t end = begin + chunk_length < t.count ? begin + chunk_length : t.count;
    for (int64_t i = begin + int64_t(threadIdx.x) * 4; i < end; i += int64_t(blockDim.x) * 4) {
      C values[4];
      const int n = int(end - i < 4 ? end - i : 4);
      load4(t.x, i, n, t.aligned, values);
      for (int k = 0; k < 4; ++k) infinite |= !is_finite(values[k]), values[k] *= scale;
      if (factor.data) store4(t.x, i, n, t.aligned, values);
    }
  }
  if (found && infinite) *found = 1;  // all writers write the same value
}

template <class C>
__global__ void scale_strided_kernel(Layout<1> layout, bool small, Operand x, Operand factor,
                                     float* found) {
  const C scale = factor_value<C>(factor);
  for (int64_t turn = global_thread(); turn < layout.turns; turn += all_threads()) {
    const int64_t at = layout.at_turn(turn, small).of[0];
    const C value = load_as<C>(x, at);
    if (found && !is_finite(value)) *found = 1;
    if (factor.data) store_as<C>(x, at, value * scale);
  }
}

/// Returns the squares of a thread's elements of [begin, end), summed in C, or in double if their
/// size requires it: f32 has no squares of numbers beyond 2^64, and below 2^-63 it loses digits of
/// them. A thread has at most 16 elements of a chunk, in four steps: for positive terms the error
/// is at most 6 roundings, 3.6e-7 of the sum.
template <class C> __device__ double squares_of(const ListedTensor& t, int64_t begin, int64_t end) {
  C sum = 0, largest = 0;
  for (int64_t i = begin + int64_t(threadIdx.x) * 4; i < end; i += int64_t(blockDim.x) * 4) {
    C x[4];
    load4(t.x, i, int(end - i < 4 ? end - i : 4), t.aligned, x);
    for (int k = 0; k < 4; ++k) largest = Max{}(largest, math::abs(x[k]));
    sum += (x[0] * x[0] + x[1] * x[1]) + (x[2] * x[2] + x[3] * x[3]);
  }
  if constexpr (std::is_same_v<C, float>) {
    const bool held = largest == 0.0f || (largest > 0x1p-40f && largest < 0x1p60f);  // false for
                                                                                     // NaN
    if (!held) return squares_of<double>(t, begin, end);
  }
  return double(sum);
}

/// Computes partial[block] += the squares of the block's elements: within a chunk in f32 (f64
/// tensors in double), across chunks in double.
template <int capacity> __global__ void squares_kernel(TensorList<capacity> list, double* partial) {
  static_assert(chunk_length == 16 * block_threads, "the bound above");
  double sum = 0;
  for (int64_t chunk = blockIdx.x; chunk < list.chunks(); chunk += gridDim.x) {
    const int item = list.item_of(chunk);
    const ListedTensor& t = list.items[item];
    const int64_t begin = (chunk - list.first_chunk[item]) * chunk_length;
    const int64_t end = begin + chunk_length < t.count ? begin + chunk_length : t.count;
    sum += t.x.dtype == f64 ? squares_of<double>(t, begin, end) : squares_of<float>(t, begin, end);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] += sum;
}
__global__ void squares_strided_kernel(Layout<1> layout, bool small, Operand x, double* partial) {
  double sum = 0;
  for (int64_t turn = global_thread(); turn < layout.turns; turn += all_threads()) {
    const auto value = load_as<double>(x, layout.at_turn(turn, small).of[0]);
    sum += value * value;
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] += sum;
}
__global__ void total_kernel(const double* partial, int count, Operand total) {
  double sum = 0;
  for (int i = int(threadIdx.x); i < count; i += int(blockDim.x)) sum += partial[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) store_as(total, 0, sum);
}

/// Calls by_list(list) for the dense ones, strided(x) for each of the others.
template <int capacity, class Tensors, class ByList, class Strided>
void each_list_of(Tensors tensors, const ByList& by_list, const Strided& strided) {
  TensorList<capacity> list;
  for (const Tensor& x : tensors) {
    if (x.numel() == 0) continue;
    if (!x.is_dense()) {
      strided(x, Layout<1>(x));
      continue;
    }
    list.add({Operand(x), x.numel(), begins_aligned4(x)}, x.numel());
    if (!list.full()) continue;
    by_list(list);
    list.clear();
  }
  if (list.count > 0) by_list(list);
}

template <class Tensors, class ByList, class Strided>
void each_list(Tensors tensors, const ByList& by_list, const Strided& strided) {
  visit_capacity<ListedTensor>(
      tensors.size(), [&]<int capacity>() { each_list_of<capacity>(tensors, by_list, strided); });
}

void scale(const Context& context, std::span<Tensor> tensors, const Tensor& factor, float* found) {
  const bool wide = std::ranges::any_of(tensors, [](const Tensor& x) { return x.dtype() == f64; });
  each_list(
      tensors,
      [&]<int capacity>(const TensorList<capacity>& list) {
        launch(context, wide ? scale_kernel<double, capacity> : scale_kernel<float, capacity>,
               shape_for_chunks(context, list), list, Operand(factor), found);
      },
      [&](const Tensor& x, const Layout<1>& layout) {
        launch(context, wide ? scale_strided_kernel<double> : scale_strided_kernel<float>,
               shape_for(context, layout.turns), layout, layout.is_small(), Operand(x),
               Operand(factor), found);
      });
  if (!factor.defined()) return;
  for (const Tensor& x : tensors) x.storage()->bump_version();
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void CudaBackend::scale_all(std::span<Tensor> tensors, const Tensor& factor) {
  scale(context_, tensors, factor, nullptr);
}

void CudaBackend::unscale(std::span<Tensor> tensors, const Tensor& factor, Tensor& found_inf) {
  scale(context_, tensors, factor, found_inf.data<float>());
}

void CudaBackend::sum_of_squares(std::span<const Tensor> tensors, Tensor& total) {
  constexpr int partials = 1024;
  Tensor partial = scratch(context_, {partials}, f64);
  fill(0, partial);
  each_list(
      tensors,
      [&]<int capacity>(const TensorList<capacity>& list) {
        launch(context_, squares_kernel<capacity>, {blocks_for(list.chunks(), 1, partials)}, list,
               partial.data<double>());
      },
      [&](const Tensor& x, const Layout<1>& layout) {
        launch(context_, squares_strided_kernel,
               {blocks_for(layout.turns, block_threads, partials)}, layout, layout.is_small(),
               Operand(x), partial.data<double>());
      });
  launch(context_, total_kernel, {dim3(1)}, partial.data<double>(), partials, Operand(total));
}

}  // namespace halftone
