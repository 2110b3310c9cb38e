// Optimizer steps over all tensors at once: the pieces of every tensor are one list of tasks, so
// many small parameters and few large ones keep all threads busy alike. f32 throughout; other
// dtypes go to the reference.
#include <cmath>

#include <halftone/backends/cpu/cpu_backend.h>
#include <halftone/backends/cpu/staging.h>

namespace halftone {

namespace {
constexpr int64_t piece = 4 * reference::grain_length;

bool plain_f32(const Tensor& x) { return !x.defined() || (x.dtype() == f32 && x.is_contiguous()); }

bool all_plain_f32(std::span<UpdateSlot> slots) {
  for (const UpdateSlot& slot : slots)
    if (slot.form != WeightForm::plain || slot.gradient_factor.defined() ||
        !plain_f32(slot.parameter) || !plain_f32(slot.gradient) || !plain_f32(slot.state[0]) ||
        !plain_f32(slot.state[1]))
      return false;
  return true;
}

/// Calls body(slot, begin, count) for the pieces of all slots, in parallel; then marks what was
/// written.
template <class Body> void for_pieces(std::span<UpdateSlot> slots, const Body& body) {
  int64_t total = 0;
  for (const UpdateSlot& slot : slots) total += slot.parameter.numel();
#pragma omp parallel if (total > piece)
  for (UpdateSlot& slot : slots) {
    const int64_t n = slot.parameter.numel(), pieces = reference::pieces_of(n, piece);
#pragma omp for schedule(static) nowait
    for (int64_t p = 0; p < pieces; ++p) body(slot, p * piece, std::min(piece, n - p * piece));
  }
  for (UpdateSlot& slot : slots) {
    slot.parameter.storage()->bump_version();
    for (const Tensor& state : slot.state)
      if (state.defined()) state.storage()->bump_version();
  }
}
}  // namespace

void CpuBackend::adam_step(std::span<UpdateSlot> slots, const AdamUpdate& update) {
  if (!all_plain_f32(slots)) return ReferenceBackend::adam_step(slots, update);
  const simd::AdamNumbers numbers{
      .lr = float(update.lr),
      .beta1 = float(update.beta1),
      .beta2 = float(update.beta2),
      .eps = float(update.eps),
      .weight_decay = float(update.weight_decay),
      .rest1 = float(1 - update.beta1),
      .rest2 = float(1 - update.beta2),
      .inverse_correction1 = float(1 / update.correction1),
      .inverse_root_correction2 = float(1 / std::sqrt(update.correction2)),
      .decoupled = update.decoupled};
  for_pieces(slots, [&, &k = simd_kernels()](const UpdateSlot& slot, int64_t begin, int64_t count) {
    k.adam(numbers, slot.gradient.data<float>() + begin, slot.parameter.data<float>() + begin,
           slot.state[0].data<float>() + begin, slot.state[1].data<float>() + begin, count);
  });
}

void CpuBackend::sgd_step(std::span<UpdateSlot> slots, const SgdUpdate& update) {
  if (!all_plain_f32(slots)) return ReferenceBackend::sgd_step(slots, update);
  const simd::SgdNumbers numbers{float(update.lr),        float(update.momentum),
                                 float(update.dampening), float(update.weight_decay),
                                 update.nesterov,         update.first_step};
  for_pieces(slots, [&, &k = simd_kernels()](const UpdateSlot& slot, int64_t begin, int64_t count) {
    float* momentum = update.momentum != 0 ? slot.state[0].data<float>() + begin : nullptr;
    k.sgd(numbers, slot.gradient.data<float>() + begin, slot.parameter.data<float>() + begin,
          momentum, count);
  });
}

void CpuBackend::scale_all(std::span<Tensor> tensors, const Tensor& factor) {
  const simd::Kernels& k = simd_kernels();
  for (Tensor& y : tensors)
    if (!plain_f32(y)) return ReferenceBackend::scale_all(tensors, factor);
  for (Tensor& y : tensors) {
    float* data = y.data<float>();
    cpu::parallel_pieces(y.numel(), piece, [&](int64_t begin, int64_t end) {
      k.scale(*factor.data<float>(), data + begin, end - begin);
    });
    y.storage()->bump_version();
  }
}

void CpuBackend::sum_of_squares(std::span<const Tensor> tensors, Tensor& total) {
  for (const Tensor& x : tensors)
    if (!plain_f32(x)) return ReferenceBackend::sum_of_squares(tensors, total);
  double sum = 0;
  for (const Tensor& x : tensors) {
    const int64_t pieces = reference::pieces_of(x.numel(), piece);
    cpu::Workspace<double> partial(pieces);
    cpu::parallel_pieces(x.numel(), piece, [&, &k = simd_kernels()](int64_t begin, int64_t end) {
      partial[begin / piece] = k.sum_of_squares(x.data<float>() + begin, end - begin);
    });
    for (int64_t p = 0; p < pieces; ++p) sum += partial[p];
  }
  reference::store_one(sum, total, 0);
}

}  // namespace halftone
