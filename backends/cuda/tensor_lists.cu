// Gradients of all parameters at once: scaling, the check for infinities and NaN, the sum of
// squares. Dense tensors go by lists; others one by one, through their strides.
#include <halftone/backends/cuda/block.h>
#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/layout.h>
#include <halftone/backends/cuda/tensor_list.h>
#include <halftone/backends/cuda/values4.h>

namespace halftone {

namespace cuda {
namespace {

struct ListedTensor {
  Operand x;
  int64_t count;
  bool aligned;
};
using TensorList = ItemList<ListedTensor, 96>;

template <class C> __device__ bool is_finite(C value) { return value - value == C(0); }

/// C is double if any tensor is f64.
template <class C> __device__ C factor_value(const Operand& factor) {
  return factor.data ? load_as<C>(factor, 0) : C(1);
}

/// Checks elements as they are (where found is not null), then multiplies them.
template <class C> __global__ void scale_kernel(TensorList list, Operand factor, float* found) {
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
  if (found && infinite) *found = 1;  // all who write, write the same
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

/// partial[block] += the squares of the block's elements, in double.
__global__ void squares_kernel(TensorList list, double* partial) {
  double sum = 0;
  for (int64_t chunk = blockIdx.x; chunk < list.chunks(); chunk += gridDim.x) {
    const int item = list.item_of(chunk);
    const ListedTensor& t = list.items[item];
    const int64_t begin = (chunk - list.first_chunk[item]) * chunk_length;
    const int64_t end = begin + chunk_length < t.count ? begin + chunk_length : t.count;
    for (int64_t i = begin + int64_t(threadIdx.x) * 4; i < end; i += int64_t(blockDim.x) * 4) {
      double values[4];
      const int n = int(end - i < 4 ? end - i : 4);
      load4(t.x, i, n, t.aligned, values);
      for (int k = 0; k < 4; ++k) sum += values[k] * values[k];
    }
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

/// by_list(list) for the dense ones, strided(x) for each of the others.
template <class Tensors, class ByList, class Strided>
void each_list(Tensors tensors, const ByList& by_list, const Strided& strided) {
  TensorList list;
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

void scale(const Context& context, std::span<Tensor> tensors, const Tensor& factor, float* found) {
  const bool wide = std::ranges::any_of(tensors, [](const Tensor& x) { return x.dtype() == f64; });
  each_list(
      tensors,
      [&](const TensorList& list) {
        launch(context, wide ? scale_kernel<double> : scale_kernel<float>,
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
      [&](const TensorList& list) {
        launch(context_, squares_kernel, {blocks_for(list.chunks(), 1, partials)}, list,
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
