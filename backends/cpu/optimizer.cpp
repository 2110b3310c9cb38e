// Optimizer steps over all tensors at once, each in one pass over memory, for all dtypes and weight
// forms (update_slots.h). f64 and tensors whose layout differs from their parameter's go to the
// reference, slot by slot. A skipped update returns before it touches anything, including storage
// versions.
#include <halftone/backends/cpu/cpu_backend.h>
#include <halftone/backends/cpu/tensor_list.h>
#include <halftone/backends/cpu/update_slots.h>
#include <halftone/backends/reference/update_scalars.h>

namespace halftone {

namespace {
/// Returns the numbers of a step for slots that have had `before` updates.
simd::UpdateNumbers numbers_of(const UpdateCall& call, int64_t before) {
  simd::UpdateNumbers result{.rule = call.rule.index(), .states = call.rule.states()};
  call.rule.visit([&]<class Rule>(const Rule& rule) {
    const auto numbers = rule.template numbers<float>(reference::rate_of(call), before);
    static_assert(sizeof numbers <= sizeof result.numbers);
    std::memcpy(result.numbers, &numbers, sizeof numbers);
    result.moves_weight = rule::moves_weight<Rule>;
  });
  return result;
}

void update_list(std::span<UpdateSlot> list, const simd::UpdateNumbers& numbers,
                 const cpu::ListSizes& sizes) {
  const auto of_blocks = [&, &k = simd_kernels()](std::size_t i, int64_t begin, int64_t end,
                                                  int64_t /*number*/) {
    cpu::UpdateBuffers buffers;
    for (int64_t at = begin; at < end; at += cpu::block_length) {
      cpu::SlotBlock block(list[i], at, std::min(cpu::block_length, end - at), buffers);
      k.update(numbers, block.gradient(), block.weight(), block.states(), block.count());
      block.finish(numbers.moves_weight);
    }
  };
  cpu::parallel_list(sizes, of_blocks);
}
}  // namespace

void CpuBackend::update(std::span<UpdateSlot> slots, const UpdateCall& call) {
  if (reference::skips(call)) return;
  cpu::in_lists(slots, [&](std::span<UpdateSlot> list) {
    // Handles runs of slots with the same number of updates: nearly always all of them.
    for (std::size_t begin = 0, end = 0; begin < list.size(); begin = end) {
      const int64_t before = reference::steps_before(list[begin], call);
      while (end < list.size() && reference::steps_before(list[end], call) == before) ++end;
      const std::span<UpdateSlot> equal = list.subspan(begin, end - begin);
      const cpu::ListSizes sizes(equal, [&](const UpdateSlot& slot) {
        return cpu::serves(slot, call.rule.states()) ? std::optional(slot.parameter.numel())
                                                     : std::nullopt;
      });
      update_list(equal, numbers_of(call, before), sizes);
      for (std::size_t i = 0; i < equal.size(); ++i) {
        if (!sizes.served(i)) ReferenceBackend::update(equal.subspan(i, 1), call);
        else equal[i].bump_versions(), reference::count_update(equal[i]);
      }
    }
  });
}

}  // namespace halftone
