// The order of each row's elements. All elements are sorted at once by a key whose bits have the
// order of the values, then, stably, by their row: two runs of the sort that embedding gradients
// use.
#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/launch.h>
#include <halftone/backends/cuda/table.h>
#include <halftone/backends/cuda/values.h>

namespace halftone {

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

}  // namespace halftone
