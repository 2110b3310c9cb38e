// Optimizer steps over all tensors at once, each in one pass over memory whatever the dtypes and
// the form of the weights (update_slots.h). f64 and tensors laid out differently from their
// parameter go to the reference, slot by slot.
#include <cmath>

#include <halftone/backends/cpu/cpu_backend.h>
#include <halftone/backends/cpu/tensor_list.h>
#include <halftone/backends/cpu/update_slots.h>

namespace halftone {

namespace {
using States = std::array<bool, 3>;

/// update(block) for all blocks of the slots that are served, in parallel; otherwise(slot) for the
/// rest. needed: which states the update reads and writes.
template <class Update, class Otherwise>
void update_slots(std::span<UpdateSlot> slots, const States& needed, const Update& update,
                  const Otherwise& otherwise) {
  cpu::in_lists(slots, [&](std::span<UpdateSlot> list) {
    const cpu::ListSizes sizes(list, [&](const UpdateSlot& slot) {
      return cpu::serves(slot, needed) ? std::optional(slot.parameter.numel()) : std::nullopt;
    });
    const auto of_blocks = [&](std::size_t i, int64_t begin, int64_t end, int64_t /*number*/) {
      cpu::UpdateBuffers buffers;
      for (int64_t at = begin; at < end; at += cpu::block_length) {
        cpu::SlotBlock block(list[i], at, std::min(cpu::block_length, end - at), buffers);
        update(block);
        block.finish();
      }
    };
    cpu::parallel_list(sizes, of_blocks);
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (sizes.served(i)) cpu::bump_versions(list[i]);
      else otherwise(list.subspan(i, 1));
    }
  });
}
}  // namespace

void CpuBackend::adam_step(std::span<UpdateSlot> slots, const AdamUpdate& update) {
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
  update_slots(
      slots, {true, true, false},
      [&, &k = simd_kernels()](const cpu::SlotBlock& b) {
        k.adam(numbers, b.gradient(), b.weight(), b.state(0), b.state(1), b.count());
      },
      [&](std::span<UpdateSlot> slot) { ReferenceBackend::adam_step(slot, update); });
}

void CpuBackend::sgd_step(std::span<UpdateSlot> slots, const SgdUpdate& update) {
  const simd::SgdNumbers numbers{float(update.lr),        float(update.momentum),
                                 float(update.dampening), float(update.weight_decay),
                                 update.nesterov,         update.first_step};
  const bool has_momentum = update.momentum != 0;
  update_slots(
      slots, {has_momentum, false, false},
      [&, &k = simd_kernels()](const cpu::SlotBlock& b) {
        k.sgd(numbers, b.gradient(), b.weight(), has_momentum ? b.state(0) : nullptr, b.count());
      },
      [&](std::span<UpdateSlot> slot) { ReferenceBackend::sgd_step(slot, update); });
}

void CpuBackend::rmsprop_step(std::span<UpdateSlot> slots, const RmspropUpdate& update) {
  const simd::RmspropNumbers numbers{.lr = float(update.lr),
                                     .alpha = float(update.alpha),
                                     .rest = float(1 - update.alpha),
                                     .eps = float(update.eps),
                                     .weight_decay = float(update.weight_decay),
                                     .momentum = float(update.momentum)};
  const bool has_momentum = update.momentum != 0;
  update_slots(
      slots, {true, has_momentum, update.centered},
      [&, &k = simd_kernels()](const cpu::SlotBlock& b) {
        k.rmsprop(numbers, b.gradient(), b.weight(), b.state(0),
                  has_momentum ? b.state(1) : nullptr, update.centered ? b.state(2) : nullptr,
                  b.count());
      },
      [&](std::span<UpdateSlot> slot) { ReferenceBackend::rmsprop_step(slot, update); });
}

}  // namespace halftone
