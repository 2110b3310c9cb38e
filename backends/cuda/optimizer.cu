// Optimizer steps: one pass over weights, gradients and state of all parameters, for all dtypes and
// weight forms (core/update_rules.h). The pass unscales and clips gradients, does nothing after an
// overflow, and writes the low-precision weight back. Numbers that depend on the step's number are
// computed before, by one thread per parameter, in double.
#include <algorithm>
#include <bit>
#include <cmath>

#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/launch.h>
#include <halftone/backends/cuda/rows.h>
#include <halftone/backends/cuda/update_slots.h>
#include <halftone/backends/cuda/values.h>
#include <halftone/core/math.h>
#include <halftone/core/update_rules.h>

namespace halftone {

namespace cuda {
namespace {

/// Returns the most states that a rule may have, at least 1; loops over them are unrolled.
template <StateMask... masks> constexpr int most_states(StateMasks<masks...> /*kinds*/) {
  StateMask all = 0;
  ((all |= masks), ...);
  return all >> 2 ? 3 : all >> 1 ? 2 : 1;
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
    if (slot.has_coded_state()) continue;  // update() has made them
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
  for (const UpdateSlot& slot : slots)
    if (slot.has_coded_state()) update_decoded(*this, slot, call);
  call.rule.visit([&]<class Rule>(const Rule& rule) {
    cuda::visit_capacity<cuda::SlotPlace>(slots.size(), [&]<int capacity>() {
      cuda::update_slots<Rule, capacity>(context_, slots, rule, control);
    });
  });
}

}  // namespace halftone

// Coded states (core/formats/coded_form.h): a warp takes a block, each lane every 32nd pair of
// numbers.

namespace halftone {

namespace cuda {
namespace {

/// The tables of a form, as an argument of kernels.
struct CodedNumbers {
  CodedForm form;
  float numbers[256];

  explicit CodedNumbers(const Codec& codec) : form(codec.form) {
    std::copy_n(codec.numbers, 256, numbers);
  }
};

__global__ void decode_blocks_kernel(const uint8_t* blocks, CodedNumbers table, Operand x,
                                     int64_t n) {
  const CodedFormFacts f = facts(table.form);
  for (int64_t i = global_thread(); i < n; i += all_threads()) {
    const uint8_t* const block = blocks + i / f.block * f.block_bytes();
    const int64_t at = i % f.block;
    coded::Scales scales{1, 1};
    // A slice may begin at any byte. The sizes are constants, so that no copy needs a stack.
    memcpy(&scales.scale, block, 4);
    if (f.scales > 1) memcpy(&scales.power, block + 4, 4);
    const uint8_t* const codes = block + f.scale_bytes();
    const int code = f.codes_in_byte == 1 ? codes[at] : codes[at / 2] >> (at % 2 != 0 ? 0 : 4) & 15;
    store_as<float>(x, i, coded::unscaled(table.form, scales, table.numbers[code]));
  }
}

__global__ void encode_blocks_kernel(Operand x, const float* skip, CodedNumbers table,
                                     uint8_t* blocks, int64_t n) {
  if (skip && *skip != 0) return;
  const CodedFormFacts f = facts(table.form);
  const int lane = int(threadIdx.x) % warp_lanes;
  for (int64_t b = global_thread() / warp_lanes; b < f.blocks(n); b += all_threads() / warp_lanes) {
    const int64_t begin = b * f.block, count = n - begin < f.block ? n - begin : f.block;
    uint32_t largest = 0, smallest = 0x7fffffff;
    for (int64_t i = lane; i < count; i += warp_lanes) {
      const uint32_t magnitude =
          std::bit_cast<uint32_t>(load_as<float>(x, begin + i)) & 0x7fffffffu;
      largest = magnitude > largest ? magnitude : largest;
      smallest = magnitude != 0 && magnitude < smallest ? magnitude : smallest;
    }
    largest = warp_reduce(largest, Max{}), smallest = warp_reduce(smallest, Min{});
    const coded::Scales scales =
        coded::scales_of(table.form, std::bit_cast<float>(largest), std::bit_cast<float>(smallest));
    uint8_t* const block = blocks + b * f.block_bytes();
    if (lane == 0) {
      memcpy(block, &scales.scale, 4);
      if (f.scales > 1) memcpy(block + 4, &scales.power, 4);
    }
    uint8_t* const codes = block + f.scale_bytes();
    const auto code = [&](int64_t i) {
      return i < count
                 ? coded::code_of(table.form, table.numbers,
                                  coded::scaled(table.form, scales, load_as<float>(x, begin + i)))
                 : uint8_t(0);
    };
    for (int64_t i = int64_t(lane) * f.codes_in_byte; i < count; i += warp_lanes * f.codes_in_byte)
      codes[i / f.codes_in_byte] =
          f.codes_in_byte == 1 ? code(i) : uint8_t(code(i) << 4 | code(i + 1));
  }
}

}  // namespace
}  // namespace cuda

void CudaBackend::decode_blocks(const Tensor& blocks, Coding storage, Tensor& x) {
  if (x.numel() == 0) return;
  cuda::launch(context_, cuda::decode_blocks_kernel, cuda::shape_for(context_, x.numel()),
               blocks.data<uint8_t>(), cuda::CodedNumbers(codec_of(storage)), cuda::Operand(x),
               x.numel());
  x.storage()->bump_version();
}

void CudaBackend::encode_blocks(const Tensor& x, const Tensor& skip, Coding storage,
                                Tensor& blocks) {
  if (x.numel() == 0) return;
  cuda::launch(context_, cuda::encode_blocks_kernel, cuda::shape_for(context_, x.numel()),
               cuda::Operand(x), skip.defined() ? skip.data<float>() : nullptr,
               cuda::CodedNumbers(codec_of(storage)), blocks.data<uint8_t>(), x.numel());
  blocks.storage()->bump_version();
}

}  // namespace halftone

// The host's part of slots.

namespace halftone::cuda {

SlotPlace::SlotPlace(const UpdateSlot& slot)
    : parameter(slot.parameter),
      gradient(slot.gradient),
      companion(slot.companion),
      gradient_factor(slot.gradient_factor.defined() ? slot.gradient_factor.data<float>()
                                                     : nullptr),
      steps(slot.steps.defined() ? slot.steps.data<int64_t>() : nullptr),
      count(slot.parameter.numel()),
      key(slot.key),
      key_stride(slot.key_stride),
      form(slot.form),
      aligned(true) {
  for (std::size_t s = 0; s < slot.state.size(); ++s) state[s] = Operand(slot.state[s]);
  for (const Tensor* x : {&slot.parameter, &slot.gradient, &slot.companion, &slot.state[0],
                          &slot.state[1], &slot.state[2]})
    aligned = aligned && (!x->defined() || begins_aligned4(*x));
}

bool lies_alike(const UpdateSlot& slot) {
  if (slot.parameter.dtype() == f64 || !slot.parameter.is_dense()) return false;
  for (const Tensor* x :
       {&slot.gradient, &slot.companion, &slot.state[0], &slot.state[1], &slot.state[2]}) {
    if (!x->defined()) continue;
    if (!Layout<2>(slot.parameter, *x).is_dense()) return false;
  }
  return true;
}

}  // namespace halftone::cuda

// The loss scale after a step: one thread computes it on the device, so that the host need not
// wait.

namespace halftone {

namespace cuda {
namespace {
__global__ void next_kernel(LossScaleOptions options, const float* found_inf, float* scale,
                            int64_t* growth_tracker, int32_t* overflows_left) {
  const LossScale after =
      next({options, *scale, *growth_tracker, *overflows_left}, *found_inf != 0);
  *scale = after.scale, *growth_tracker = after.growth_tracker;
  *overflows_left = after.overflows_left;
}
}  // namespace
}  // namespace cuda

void CudaBackend::next_loss_scale(const LossScaleOptions& options, const Tensor& found_inf,
                                  Tensor& scale, Tensor& growth_tracker, Tensor& overflows_left) {
  cuda::launch(context_, cuda::next_kernel, {dim3(1), dim3(1)}, options, found_inf.data<float>(),
               scale.data<float>(), growth_tracker.data<int64_t>(), overflows_left.data<int32_t>());
  for (const Tensor* x : {&scale, &growth_tracker, &overflows_left}) x->storage()->bump_version();
}

// Gradients of all parameters at once: scaling, the check for infinities and NaN, the sum of
// squares. Dense tensors use lists; others are handled one by one, with their strides.

namespace cuda {
namespace {

struct ListedTensor {
  Operand x;
  int64_t count;
  bool aligned;
};
template <int capacity> using TensorList = ItemList<ListedTensor, capacity>;

template <class C> __device__ bool is_finite(C value) { return value - value == C(0); }

/// C is double if any tensor is f64.
template <class C> __device__ C factor_value(const Operand& factor) {
  return factor.data ? load_as<C>(factor, 0) : C(1);
}

/// Checks elements before scaling (if `found` is not null), then multiplies them.
template <class C, int capacity>
__global__ void scale_kernel(TensorList<capacity> list, Operand factor, float* found) {
  const C scale = factor_value<C>(factor);
  bool infinite = false;
  for (int64_t chunk = blockIdx.x; chunk < list.chunks(); chunk += gridDim.x) {
    const int item = list.item_of(chunk);
    const ListedTensor& t = list.items[item];
    const int64_t begin = (chunk - list.first_chunk[item]) * chunk_length;
    const int64_t end = begin + chunk_length < t.count ? begin + chunk_length : t.count;
    for (int64_t i = begin + int64_t(threadIdx.x) * 4; i < end; i += int64_t(blockDim.x) * 4) {
      C values[4];
      const int n = int(end - i < 4 ? end - i : 4);
      load4(t.x, i, n, t.aligned, values);
      for (int k = 0; k < 4; ++k) infinite |= !is_finite(values[k]), values[k] *= scale;
      if (factor.data) store4(t.x, i, n, t.aligned, values);
    }
  }
  if (found && infinite) *found = 1;  // all writers write the same value
}

template <class C>
__global__ void scale_strided_kernel(Layout<1> layout, bool small, Operand x, Operand factor,
                                     float* found) {
  const C scale = factor_value<C>(factor);
  for (int64_t turn = global_thread(); turn < layout.turns; turn += all_threads()) {
    const int64_t at = layout.at_turn(turn, small).of[0];
    const C value = load_as<C>(x, at);
    if (found && !is_finite(value)) *found = 1;
    if (factor.data) store_as<C>(x, at, value * scale);
  }
}

/// Returns the squares of a thread's elements of [begin, end), summed in C, or in double if their
/// size requires it: f32 has no squares of numbers beyond 2^64, and below 2^-63 it loses digits of
/// them. A thread has at most 16 elements of a chunk, in four steps: for positive terms the error
/// is at most 6 roundings, 3.6e-7 of the sum.
template <class C> __device__ double squares_of(const ListedTensor& t, int64_t begin, int64_t end) {
  C sum = 0, largest = 0;
  for (int64_t i = begin + int64_t(threadIdx.x) * 4; i < end; i += int64_t(blockDim.x) * 4) {
    C x[4];
    load4(t.x, i, int(end - i < 4 ? end - i : 4), t.aligned, x);
    for (int k = 0; k < 4; ++k) largest = Max{}(largest, math::abs(x[k]));
    sum += (x[0] * x[0] + x[1] * x[1]) + (x[2] * x[2] + x[3] * x[3]);
  }
  if constexpr (std::is_same_v<C, float>) {
    const bool held = largest == 0.0f || (largest > 0x1p-40f && largest < 0x1p60f);  // false for
                                                                                     // NaN
    if (!held) return squares_of<double>(t, begin, end);
  }
  return double(sum);
}

/// Computes partial[block] += the squares of the block's elements: within a chunk in f32 (f64
/// tensors in double), across chunks in double.
template <int capacity> __global__ void squares_kernel(TensorList<capacity> list, double* partial) {
  static_assert(chunk_length == 16 * block_threads, "the bound above");
  double sum = 0;
  for (int64_t chunk = blockIdx.x; chunk < list.chunks(); chunk += gridDim.x) {
    const int item = list.item_of(chunk);
    const ListedTensor& t = list.items[item];
    const int64_t begin = (chunk - list.first_chunk[item]) * chunk_length;
    const int64_t end = begin + chunk_length < t.count ? begin + chunk_length : t.count;
    sum += t.x.dtype == f64 ? squares_of<double>(t, begin, end) : squares_of<float>(t, begin, end);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] += sum;
}
__global__ void squares_strided_kernel(Layout<1> layout, bool small, Operand x, double* partial) {
  double sum = 0;
  for (int64_t turn = global_thread(); turn < layout.turns; turn += all_threads()) {
    const auto value = load_as<double>(x, layout.at_turn(turn, small).of[0]);
    sum += value * value;
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] += sum;
}
__global__ void total_kernel(const double* partial, int count, Operand total) {
  double sum = 0;
  for (int i = int(threadIdx.x); i < count; i += int(blockDim.x)) sum += partial[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) store_as(total, 0, sum);
}

/// Calls by_list(list) for the dense ones, strided(x) for each of the others.
template <int capacity, class Tensors, class ByList, class Strided>
void each_list_of(Tensors tensors, const ByList& by_list, const Strided& strided) {
  TensorList<capacity> list;
  for (const Tensor& x : tensors) {
    if (x.numel() == 0) continue;
    if (!x.is_dense()) {
      strided(x, Layout<1>(x));
      continue;
    }
    list.add({Operand(x), x.numel(), begins_aligned4(x)}, x.numel());
    if (!list.full()) continue;
    by_list(list);
    list.clear();
  }
  if (list.count > 0) by_list(list);
}

template <class Tensors, class ByList, class Strided>
void each_list(Tensors tensors, const ByList& by_list, const Strided& strided) {
  visit_capacity<ListedTensor>(
      tensors.size(), [&]<int capacity>() { each_list_of<capacity>(tensors, by_list, strided); });
}

void scale(const Context& context, std::span<Tensor> tensors, const Tensor& factor, float* found) {
  const bool wide = std::ranges::any_of(tensors, [](const Tensor& x) { return x.dtype() == f64; });
  each_list(
      tensors,
      [&]<int capacity>(const TensorList<capacity>& list) {
        launch(context, wide ? scale_kernel<double, capacity> : scale_kernel<float, capacity>,
               shape_for_chunks(context, list), list, Operand(factor), found);
      },
      [&](const Tensor& x, const Layout<1>& layout) {
        launch(context, wide ? scale_strided_kernel<double> : scale_strided_kernel<float>,
               shape_for(context, layout.turns), layout, layout.is_small(), Operand(x),
               Operand(factor), found);
      });
  if (!factor.defined()) return;
  for (const Tensor& x : tensors) x.storage()->bump_version();
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void CudaBackend::scale_all(std::span<Tensor> tensors, const Tensor& factor) {
  scale(context_, tensors, factor, nullptr);
}

void CudaBackend::unscale(std::span<Tensor> tensors, const Tensor& factor, Tensor& found_inf) {
  scale(context_, tensors, factor, found_inf.data<float>());
}

void CudaBackend::sum_of_squares(std::span<const Tensor> tensors, Tensor& total) {
  constexpr int partials = 1024;
  Tensor partial = scratch(context_, {partials}, f64);
  fill(0, partial);
  each_list(
      tensors,
      [&]<int capacity>(const TensorList<capacity>& list) {
        launch(context_, squares_kernel<capacity>, {blocks_for(list.chunks(), 1, partials)}, list,
               partial.data<double>());
      },
      [&](const Tensor& x, const Layout<1>& layout) {
        launch(context_, squares_strided_kernel,
               {blocks_for(layout.turns, block_threads, partials)}, layout, layout.is_small(),
               Operand(x), partial.data<double>());
      });
  launch(context_, total_kernel, {dim3(1)}, partial.data<double>(), partials, Operand(total));
}

}  // namespace halftone
