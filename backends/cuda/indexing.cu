// Gathers elements by indices along one dimension, and its adjoint, which sums in a fixed order:
// positions in y are numbered, and their terms are added up as rows of a table with one column
// (table.cu). An index out of range is reported; it reads as zero and adds nothing.
#include <halftone/backends/cuda/conversion.h>
#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/launch.h>
#include <halftone/backends/cuda/layout.h>

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

}  // namespace halftone
