// Optimizer steps: one pass over weights, gradients and state of all parameters, for all dtypes and
// weight forms (core/update_rules.h). The pass unscales and clips gradients, does nothing after an
// overflow, and writes the low-precision weight back. Numbers that depend on the step's number are
// computed before, by one thread per parameter, in double.
#include <algorithm>
#include <cmath>

#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/layout.h>
#include <halftone/backends/cuda/update_slots.h>
#include <halftone/core/update_rules.h>

namespace halftone {

namespace cuda {
namespace {

/// Returns the most states that a rule may have; loops over them are unrolled.
template <StateMask... masks> constexpr int most_states(StateMasks<masks...> /*kinds*/) {
  StateMask all = 0;
  ((all |= masks), ...);
  return all >> 2 ? 3 : all >> 1 ? 2 : all ? 1 : 0;
}
template <class Rule> constexpr int states_of = most_states(typename Rule::Kinds{});

/// Computes numbers[i] for every slot of the list; counts the step unless it is skipped.
template <class C, class Rule, int capacity>
__global__ void prepare_kernel(SlotList<capacity> list, Rule rule, StepControl control,
                               typename Rule::template Numbers<C>* numbers) {
  const int i = int(threadIdx.x);
  if (i >= list.count) return;
  int64_t* const device_steps = list.items[i].steps;
  const int64_t before = device_steps ? *device_steps : control.steps;
  numbers[i] = rule.template numbers<C>(control.rate(), before);
  if (device_steps && !control.skips()) *device_steps = before + 1;
}

/// Updates one parameter's elements [at, at + n), n from 1 to 4. All four are computed, so that
/// they stay in registers; only n are written.
template <class Rule>
__device__ void update4(const SlotPlace& slot, StateMask mask,
                        const typename Rule::template Numbers<float>& numbers, const RandomKey& key,
                        int64_t at, int n) {
  constexpr int count = states_of<Rule>;
  float weights[4]{}, gradients[4]{}, states[count][4]{};
  read_weights(slot, at, n, weights);
  load4(slot.gradient, at, n, slot.aligned, gradients);
  for (int s = 0; s < count; ++s)
    if (slot.state[s].data) load4(slot.state[s], at, n, slot.aligned, states[s]);
  const float factor = slot.gradient_factor ? *slot.gradient_factor : 1.0f;
  for (int k = 0; k < 4; ++k) {
    float state[count];
    for (int s = 0; s < count; ++s) state[s] = states[s][k];
    Rule::apply(numbers, DynamicStates{mask}, gradients[k] * factor, weights[k], state);
    for (int s = 0; s < count; ++s) states[s][k] = state[s];
  }
  if (rule::moves_weight<Rule>) write_weights(slot, key, at, n, weights);
  for (int s = 0; s < count; ++s)
    if (slot.state[s].data) store4(slot.state[s], at, n, slot.aligned, states[s]);
}

template <class Rule, int capacity>
__global__ void __launch_bounds__(block_threads)
    update_kernel(SlotList<capacity> list, StateMask mask, StepControl control,
                  const uint64_t* key_shift,
                  const typename Rule::template Numbers<float>* numbers) {
  if (control.skips()) return;
  for (int64_t chunk = blockIdx.x; chunk < list.chunks(); chunk += gridDim.x) {
    const int item = list.item_of(chunk);
    const SlotPlace& slot = list.items[item];
    const auto own = numbers[item];
    const RandomKey key = key_of_replay(slot.key, slot.key_stride, key_shift);
    const int64_t begin = (chunk - list.first_chunk[item]) * chunk_length;
    const int64_t end = begin + chunk_length < slot.count ? begin + chunk_length : slot.count;
    for (int64_t i = begin + int64_t(threadIdx.x) * 4; i < end; i += int64_t(blockDim.x) * 4)
      update4<Rule>(slot, mask, own, key, i, int(end - i < 4 ? end - i : 4));
  }
}

/// Updates f64 parameters, and tensors whose layout differs from their parameter's, element by
/// element.
template <class C, class Rule>
__global__ void update_strided_kernel(SlotPlace slot, Layout<slot_tensors> layout, bool small,
                                      StateMask mask, StepControl control,
                                      const uint64_t* key_shift,
                                      const typename Rule::template Numbers<C>* numbers) {
  if (control.skips()) return;
  constexpr int count = states_of<Rule>;
  const RandomKey key = key_of_replay(slot.key, slot.key_stride, key_shift);
  for (int64_t turn = global_thread(); turn < layout.turns; turn += all_threads()) {
    const Places<slot_tensors> at = layout.at_turn(turn, small);
    const C factor = slot.gradient_factor ? C(*slot.gradient_factor) : C(1);
    C weight = read_weight<C>(slot, at), state[count];
    for (int s = 0; s < count; ++s)
      state[s] = slot.state[s].data ? load_as<C>(slot.state[s], at.of[place_of_state + s]) : C(0);
    const C gradient = load_as<C>(slot.gradient, at.of[place_of_gradient]) * factor;
    Rule::apply(numbers[0], DynamicStates{mask}, gradient, weight, state);
    if (rule::moves_weight<Rule>) write_weight(slot, key, at, weight);
    for (int s = 0; s < count; ++s)
      if (slot.state[s].data) store_as<C>(slot.state[s], at.of[place_of_state + s], state[s]);
  }
}

/// Returns memory for the numbers of one list, which the next list reuses. It is allocated before
/// anything is changed: without memory for it, no parameter has changed.
template <class Rule> Tensor room_for_numbers(const Context& context, std::size_t slots) {
  constexpr std::size_t bytes = std::max(sizeof(typename Rule::template Numbers<double>),
                                         sizeof(typename Rule::template Numbers<float>));
  return scratch(context, {int64_t(bytes * slots)}, u8);
}

template <class C, class Rule, int capacity>
auto* prepared(const Context& context, const SlotList<capacity>& list, const Rule& rule,
               const StepControl& control, const Tensor& room) {
  using Numbers = typename Rule::template Numbers<C>;
  auto* const numbers = reinterpret_cast<Numbers*>(room.raw_data());
  launch(context, prepare_kernel<C, Rule, capacity>, {dim3(1), dim3(unsigned(capacity))}, list,
         rule, control, numbers);
  return static_cast<const Numbers*>(numbers);
}

template <class Rule, int capacity>
void update_list(const Context& context, const SlotList<capacity>& list, const Rule& rule,
                 const StepControl& control, const Tensor& room) {
  const auto* const numbers = prepared<float>(context, list, rule, control, room);
  launch(context, update_kernel<Rule, capacity>, shape_for_chunks(context, list), list,
         rule.states(), control, context.key_shift(), numbers);
}

template <class C, class Rule>
void update_strided(const Context& context, const UpdateSlot& slot, const Rule& rule,
                    const StepControl& control, const Tensor& room) {
  const Layout<slot_tensors> layout(slot.parameter, slot.gradient, slot.companion, slot.state[0],
                                    slot.state[1], slot.state[2]);
  SlotList<1> list;
  list.add(SlotPlace(slot), slot.parameter.numel());
  const auto* const numbers = prepared<C>(context, list, rule, control, room);
  if (layout.turns == 0) return;
  launch(context, update_strided_kernel<C, Rule>, shape_for(context, layout.turns), list.items[0],
         layout, layout.is_small(), rule.states(), control, context.key_shift(), numbers);
}

template <class Rule, int capacity>
void update_slots(const Context& context, std::span<UpdateSlot> slots, const Rule& rule,
                  const StepControl& control) {
  const Tensor room =
      room_for_numbers<Rule>(context, std::min(slots.size(), std::size_t(capacity)));
  SlotList<capacity> list;
  for (const UpdateSlot& slot : slots) {
    if (slot.parameter.dtype() == f64) {
      update_strided<double>(context, slot, rule, control, room);
    } else if (!lies_alike(slot)) {
      update_strided<float>(context, slot, rule, control, room);
    } else {
      list.add(SlotPlace(slot), slot.parameter.numel());
      if (list.full()) update_list(context, list, rule, control, room), list.clear();
    }
    slot.bump_versions();
  }
  if (list.count > 0) update_list(context, list, rule, control, room);
}

}  // namespace
}  // namespace cuda

void CudaBackend::update(std::span<UpdateSlot> slots, const UpdateCall& call) {
  const cuda::StepControl control(call);
  if (slots.empty()) return;
  call.rule.visit([&]<class Rule>(const Rule& rule) {
    cuda::visit_capacity<cuda::SlotPlace>(slots.size(), [&]<int capacity>() {
      cuda::update_slots<Rule, capacity>(context_, slots, rule, control);
    });
  });
}

}  // namespace halftone
