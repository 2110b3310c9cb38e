// Copies whole slices that a vector of indices selects; other gathers go to the reference.
#include <cstring>

#include <halftone/backends/cpu/cpu_backend.h>
#include <halftone/backends/cpu/staging.h>
#include <halftone/backends/reference/indices.h>

namespace halftone {

namespace {
/// Returns whether all positions of a slice have the same index: an expanded vector, as
/// index_select makes it.
bool is_vector(const Tensor& index, int dim) {
  for (int d = 0; d < index.rank(); ++d)
    if (d != dim && index.shape()[d] != 1 && index.strides()[d] != 0) return false;
  return true;
}
}  // namespace

void CpuBackend::gather(const Tensor& x, int dim, const Tensor& index, Tensor& y) {
  if (y.numel() == 0 || x.dtype() != y.dtype() || !is_vector(index, dim))
    return ReferenceBackend::gather(x, dim, index, y);
  Shape slice = y.shape();
  slice[dim] = 1;
  const cpu::LoopNest<2> nest(slice, {y.strides(), x.strides()});
  constexpr int64_t worth_copying = 16;
  if (nest.inner_step(0) != 1 || nest.inner_step(1) != 1 || nest.inner_count() < worth_copying)
    return ReferenceBackend::gather(x, dim, index, y);
  const Tensor which =
      index.view_as({index.shape()[dim]}, Dims{index.strides()[dim]}, index.offset());
  reference::check_indices(which, x.shape()[dim]);
  const int64_t size = size_of(y.dtype()), from = x.strides()[dim] * size,
                to = y.strides()[dim] * size;
  cpu::parallel_pieces(
      which.numel(), std::max<int64_t>(1, reference::grain_length / nest.turns()),
      [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t picked = which.data<int64_t>()[i * which.strides()[0]];
          nest.runs(0, nest.turns(), [&](const auto& at, const auto&, int64_t count) {
            std::memcpy(y.raw_data() + i * to + at[0] * size,
                        x.raw_data() + picked * from + at[1] * size, std::size_t(count * size));
          });
        }
      });
}

}  // namespace halftone
