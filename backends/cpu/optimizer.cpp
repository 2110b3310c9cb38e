// Optimizer steps over all tensors at once, each in one pass over memory whatever the dtypes and
// the form of the weights (update_slots.h). f64 and tensors laid out differently from their
// parameter go to the reference, slot by slot. A skipped update returns before it touches anything,
// storage versions included.
#include <cmath>

#include <halftone/backends/cpu/cpu_backend.h>
#include <halftone/backends/cpu/tensor_list.h>
#include <halftone/backends/cpu/update_slots.h>
#include <halftone/backends/reference/update_scalars.h>

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
      if (!sizes.served(i)) otherwise(list.subspan(i, 1));
      else cpu::bump_versions(list[i]), reference::count_update(list[i]);
    }
  });
}

/// update(slots, steps) for each stretch of slots that have done equally many: nearly always all.
template <class Update>
void in_equal_steps(std::span<UpdateSlot> slots, int64_t steps, const Update& update) {
  while (!slots.empty()) {
    const int64_t first = reference::steps_before(slots[0], steps);
    std::size_t count = 1;
    while (count < slots.size() && reference::steps_before(slots[count], steps) == first) ++count;
    update(slots.first(count), first);
    slots = slots.subspan(count);
  }
}
}  // namespace

void CpuBackend::adam_step(std::span<UpdateSlot> slots, const AdamUpdate& update) {
  if (update.amsgrad) return ReferenceBackend::adam_step(slots, update);
  if (reference::skips(update)) return;
  const double lr = reference::rate_of(update);
  in_equal_steps(slots, update.steps, [&](std::span<UpdateSlot> some, int64_t steps) {
    const auto [correction1, correction2] = reference::bias_corrections(update, steps);
    const simd::AdamNumbers numbers{.lr = float(lr),
                                    .beta1 = float(update.beta1),
                                    .beta2 = float(update.beta2),
                                    .eps = float(update.eps),
                                    .weight_decay = float(update.weight_decay),
                                    .rest1 = float(1 - update.beta1),
                                    .rest2 = float(1 - update.beta2),
                                    .inverse_correction1 = float(1 / correction1),
                                    .inverse_root_correction2 = float(1 / std::sqrt(correction2)),
                                    .decoupled = update.decoupled};
    update_slots(
        some, {true, true, false},
        [&, &k = simd_kernels()](const cpu::SlotBlock& b) {
          k.adam(numbers, b.gradient(), b.weight(), b.state(0), b.state(1), b.count());
        },
        [&](std::span<UpdateSlot> slot) { ReferenceBackend::adam_step(slot, update); });
  });
}

void CpuBackend::sgd_step(std::span<UpdateSlot> slots, const SgdUpdate& update) {
  if (reference::skips(update)) return;
  const double lr = reference::rate_of(update);
  const bool has_momentum = update.momentum != 0;
  in_equal_steps(slots, update.steps, [&](std::span<UpdateSlot> some, int64_t steps) {
    const simd::SgdNumbers numbers{float(lr),
                                   float(update.momentum),
                                   float(update.dampening),
                                   float(update.weight_decay),
                                   update.nesterov,
                                   steps == 0};
    update_slots(
        some, {has_momentum, false, false},
        [&, &k = simd_kernels()](const cpu::SlotBlock& b) {
          k.sgd(numbers, b.gradient(), b.weight(), has_momentum ? b.state(0) : nullptr, b.count());
        },
        [&](std::span<UpdateSlot> slot) { ReferenceBackend::sgd_step(slot, update); });
  });
}

void CpuBackend::rmsprop_step(std::span<UpdateSlot> slots, const RmspropUpdate& update) {
  if (reference::skips(update)) return;
  const simd::RmspropNumbers numbers{.lr = float(reference::rate_of(update)),
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
