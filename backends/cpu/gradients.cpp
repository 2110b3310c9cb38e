// What happens to all gradients between backward and the step: unscaling, norms, clipping. One pass
// over dense tensors of f32 and short floats; the reference takes others.
#include <algorithm>
#include <atomic>

#include <halftone/backends/cpu/cpu_backend.h>
#include <halftone/backends/cpu/staging.h>
#include <halftone/backends/cpu/tensor_list.h>

namespace halftone {

namespace {
bool served(const Tensor& x) { return cpu::is_f32_or_short(x) && x.is_dense(); }

/// Sizes for parallel_list, -1 for a tensor that is not served.
class Sizes {
 public:
  explicit Sizes(std::span<const Tensor> tensors) : sizes_(int64_t(tensors.size())) {
    for (std::size_t i = 0; i < tensors.size(); ++i)
      sizes_[int64_t(i)] = served(tensors[i]) ? tensors[i].numel() : -1;
  }
  std::span<const int64_t> all() { return {sizes_.data(), std::size_t(sizes_.size())}; }

 private:
  cpu::Workspace<int64_t> sizes_;
};

/// kernel(x, y, n) over a piece of a tensor, in place or block by block; y = x in the end.
template <class Kernel>
void rewrite(const Tensor& x, int64_t begin, int64_t end, const Kernel& kernel) {
  alignas(64) float buffer[cpu::block_length];
  for (int64_t at = begin; at < end; at += cpu::block_length) {
    const int64_t n = std::min(cpu::block_length, end - at);
    const float* values = cpu::floats(x, at, 1, n, buffer);
    cpu::Output output(x, at, 1, n, buffer);
    kernel(values, output.data(), n);
    output.finish();
  }
}
}  // namespace

void CpuBackend::scale_all(std::span<Tensor> tensors, const Tensor& factor) {
  const auto scale = float(reference::load_one(factor, 0));
  Sizes sizes(tensors);
  cpu::parallel_list(sizes.all(), [&, &k = simd_kernels()](std::size_t i, int64_t begin,
                                                           int64_t end, int64_t /*number*/) {
    rewrite(tensors[i], begin, end,
            [&](const float*, float* values, int64_t n) { k.scale(scale, values, n); });
  });
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (served(tensors[i])) tensors[i].storage()->bump_version();
    else ReferenceBackend::scale_all(tensors.subspan(i, 1), factor);
  }
}

void CpuBackend::unscale(std::span<Tensor> tensors, const Tensor& factor, Tensor& found_inf) {
  const simd::Kernels& k = simd_kernels();
  const float scale = factor.defined() ? float(reference::load_one(factor, 0)) : 1.0f;
  std::atomic<bool> found = false;
  const auto check = [&](const float* x, float* y, int64_t n) {
    if (!k.unscale(x, scale, y, n)) found.store(true, std::memory_order_relaxed);
  };
  Sizes sizes(tensors);
  cpu::parallel_list(sizes.all(),
                     [&](std::size_t i, int64_t begin, int64_t end, int64_t /*number*/) {
                       if (factor.defined()) return rewrite(tensors[i], begin, end, check);
                       alignas(64) float buffer[cpu::block_length];
                       for (int64_t at = begin; at < end; at += cpu::block_length) {
                         const int64_t n = std::min(cpu::block_length, end - at);
                         check(cpu::floats(tensors[i], at, 1, n, buffer), nullptr, n);
                       }
                     });
  if (found) reference::store_one(1, found_inf, 0);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!served(tensors[i])) ReferenceBackend::unscale(tensors.subspan(i, 1), factor, found_inf);
    else if (factor.defined()) tensors[i].storage()->bump_version();
  }
}

void CpuBackend::sum_of_squares(std::span<const Tensor> tensors, Tensor& total) {
  if (!std::all_of(tensors.begin(), tensors.end(), served))
    return ReferenceBackend::sum_of_squares(tensors, total);
  Sizes sizes(tensors);
  // A sum for each piece, added up in their order: the threads do not show.
  cpu::Workspace<double> partial(cpu::list_pieces(sizes.all()));
  cpu::parallel_list(sizes.all(), [&, &k = simd_kernels()](std::size_t i, int64_t begin,
                                                           int64_t end, int64_t number) {
    alignas(64) float buffer[cpu::block_length];
    const bool in_place = tensors[i].dtype() == f32;
    const int64_t step = in_place ? end - begin : cpu::block_length;
    double sum = 0;
    for (int64_t at = begin; at < end; at += step) {
      const int64_t n = std::min(step, end - at);
      sum += k.sum_of_squares(cpu::floats(tensors[i], at, 1, n, buffer), n);
    }
    partial[number] = sum;
  });
  double sum = 0;
  for (int64_t piece = 0; piece < partial.size(); ++piece) sum += partial[piece];
  reference::store_one(sum, total, 0);
}

}  // namespace halftone
