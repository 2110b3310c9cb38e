// Operations on all gradients between backward and the step: unscaling, norms, clipping. One pass
// over dense tensors of f32 and short floats; the reference handles the others.
#include <algorithm>
#include <atomic>

#include <halftone/backends/cpu/cpu_backend.h>
#include <halftone/backends/cpu/staging.h>
#include <halftone/backends/cpu/tensor_list.h>

namespace halftone {

namespace {
bool served(const Tensor& x) { return cpu::is_f32_or_short(x) && x.is_dense(); }
std::optional<int64_t> size_if_served(const Tensor& x) {
  return served(x) ? std::optional(x.numel()) : std::nullopt;
}

/// Calls kernel(x, y, n) over a piece of a tensor, in place or block by block; y is x.
template <class Kernel>
void rewrite(const Tensor& x, int64_t begin, int64_t end, const Kernel& kernel) {
  if (x.dtype() == f32) {
    float* values = x.data<float>() + begin;
    return kernel(values, values, end - begin);
  }
  alignas(64) float buffer[cpu::block_length];
  for (int64_t at = begin; at < end; at += cpu::block_length) {
    const int64_t n = std::min(cpu::block_length, end - at);
    cpu::widen(x, at, n, buffer);
    kernel(buffer, buffer, n);
    cpu::narrow(buffer, n, x, at);
  }
}

/// Calls use(x, n) for a piece of a tensor, at once or block by block.
template <class Use> void read(const Tensor& x, int64_t begin, int64_t end, const Use& use) {
  if (x.dtype() == f32) return use(x.data<float>() + begin, end - begin);
  alignas(64) float buffer[cpu::block_length];
  for (int64_t at = begin; at < end; at += cpu::block_length) {
    const int64_t n = std::min(cpu::block_length, end - at);
    cpu::widen(x, at, n, buffer);
    use(buffer, n);
  }
}
}  // namespace

void CpuBackend::scale_all(std::span<Tensor> tensors, const Tensor& factor) {
  const auto scale = float(reference::load_one(factor, 0));
  const auto kernel = [scale, &k = simd_kernels()](const float*, float* values, int64_t n) {
    k.scale(scale, values, n);
  };
  cpu::in_lists(tensors, [&](std::span<Tensor> list) {
    const cpu::ListSizes sizes(list, size_if_served);
    cpu::parallel_list(sizes, [&](std::size_t i, int64_t begin, int64_t end, int64_t /*number*/) {
      rewrite(list[i], begin, end, kernel);
    });
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (sizes.served(i)) list[i].storage()->bump_version();
      else ReferenceBackend::scale_all(list.subspan(i, 1), factor);
    }
  });
}

void CpuBackend::unscale(std::span<Tensor> tensors, const Tensor& factor, Tensor& found_inf) {
  const float scale = factor.defined() ? float(reference::load_one(factor, 0)) : 1.0f;
  std::atomic<bool> found = false;
  const auto kernel = [&, &k = simd_kernels()](const float* x, float* y, int64_t n) {
    if (!k.unscale(x, scale, y, n)) found.store(true, std::memory_order_relaxed);
  };
  const auto check = [&](const float* x, int64_t n) { kernel(x, nullptr, n); };
  cpu::in_lists(tensors, [&](std::span<Tensor> list) {
    const cpu::ListSizes sizes(list, size_if_served);
    cpu::parallel_list(sizes, [&](std::size_t i, int64_t begin, int64_t end, int64_t /*number*/) {
      if (factor.defined()) rewrite(list[i], begin, end, kernel);
      else read(list[i], begin, end, check);
    });
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (!sizes.served(i)) ReferenceBackend::unscale(list.subspan(i, 1), factor, found_inf);
      else if (factor.defined()) list[i].storage()->bump_version();
    }
  });
  if (found) reference::store_one(1, found_inf, 0);
}

void CpuBackend::sum_of_squares(std::span<const Tensor> tensors, Tensor& total) {
  if (!std::all_of(tensors.begin(), tensors.end(), served))
    return ReferenceBackend::sum_of_squares(tensors, total);
  double sum = 0;
  cpu::in_lists(tensors, [&](std::span<const Tensor> list) {
    const cpu::ListSizes sizes(list, size_if_served);
    // One sum per piece, added up in the order of the pieces: the number of threads has no effect.
    cpu::Workspace<double> partial(sizes.pieces());
    cpu::parallel_list(
        sizes, [&, &k = simd_kernels()](std::size_t i, int64_t begin, int64_t end, int64_t number) {
          double piece = 0;
          read(list[i], begin, end,
               [&](const float* x, int64_t n) { piece += k.sum_of_squares(x, n); });
          partial[number] = piece;
        });
    for (int64_t piece = 0; piece < partial.size(); ++piece) sum += partial[piece];
  });
  reference::store_one(sum, total, 0);
}

}  // namespace halftone
