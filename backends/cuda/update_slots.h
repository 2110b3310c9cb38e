// Loops over many tensors, and the slots of updates.
#pragma once

#include <cstdint>

#include <halftone/backends/cuda/launch.h>
#include <halftone/backends/cuda/values.h>
#include <halftone/core/backend.h>
#include <halftone/core/update_rules.h>

namespace halftone::cuda {

// Loops over many tensors in one launch. The description of each is passed to the kernel by value,
// as many as fit in the 32,764 bytes of kernel arguments (since CUDA 12.1; for a short list 4 KiB,
// which are copied faster). Blocks take chunks of the list, so a list of small tensors costs as
// much as one large tensor.

/// Elements of a chunk: a multiple of all packs, so that chunks of aligned tensors are aligned.
inline constexpr int64_t chunk_length = 4096;

constexpr int64_t chunks_of(int64_t elements) {
  return elements / chunk_length + (elements % chunk_length != 0);
}

/// The bytes of a kernel's arguments that a list may take; the rest is for other arguments.
inline constexpr std::size_t short_arguments = 3900, long_arguments = 32'500;

/// Returns the number of items, with their chunks, that fit into `bytes`.
template <class Item> constexpr int items_in(std::size_t bytes) {
  return int((bytes - 2 * sizeof(int64_t)) / (sizeof(Item) + sizeof(int64_t)));
}

/// Up to `capacity` items and the numbers of their first chunks.
template <class Item, int capacity> struct ItemList {
  static_assert(capacity <= items_in<Item>(long_arguments), "kernel arguments are at most 32 KiB");
  static constexpr int most = capacity;
  int count = 0;
  int64_t first_chunk[capacity + 1] = {0};
  Item items[capacity];

  bool full() const { return count == capacity; }
  void clear() { count = 0; }
  void add(const Item& item, int64_t elements) {
    items[count] = item;
    first_chunk[count + 1] = first_chunk[count] + chunks_of(elements);
    ++count;
  }
  HT_HD int64_t chunks() const { return first_chunk[count]; }
  /// Returns the item of a chunk: the last one that begins at or before it and is not empty.
  HT_HD int item_of(int64_t chunk) const {
    int low = 0, high = count;  // first_chunk[low] <= chunk < first_chunk[high]
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (first_chunk[middle] <= chunk) low = middle;
      else high = middle;
    }
    return low;
  }
};

/// Calls visitor.operator()<capacity>() for the shorter of two lists if it holds that many items,
/// otherwise for the longer one.
template <class Item, class Visitor> void visit_capacity(std::size_t items, Visitor&& visitor) {
  constexpr int few = items_in<Item>(short_arguments);
  if (items <= std::size_t(few)) visitor.template operator()<few>();
  else visitor.template operator()<items_in<Item>(long_arguments)>();
}

/// Returns the blocks for the chunks of a list.
template <class List> LaunchShape shape_for_chunks(const Context& context, const List& list) {
  return {blocks_for(list.chunks(), 1, int64_t(context.multiprocessors()) * 16)};
}

// Parameters in an update kernel: where their tensors are, and the conversion of weight forms
// (core/update_rules.h) into registers and back.

/// The tensors of a slot in a Layout's numbering.
enum SlotTensor : int {
  place_of_parameter,
  place_of_gradient,
  place_of_companion,
  place_of_state,
  slot_tensors = place_of_state + 3
};

/// An UpdateSlot for kernels.
struct SlotPlace {
  Operand parameter, gradient, companion, state[3];
  const float* gradient_factor = nullptr;
  int64_t* steps = nullptr;  // null: the host counts
  int64_t count = 0;
  RandomKey key{};
  uint64_t key_stride = 0;
  WeightForm form = WeightForm::plain;
  bool aligned = false;

  SlotPlace() = default;
  explicit SlotPlace(const UpdateSlot& slot);
};

template <int capacity> using SlotList = ItemList<SlotPlace, capacity>;

/// The values that decide a step on the device.
struct StepControl {
  double lr;
  int64_t steps;
  const double* device_lr;
  const float* skip;

  explicit StepControl(const UpdateCall& call)
      : lr(call.lr),
        steps(call.steps),
        device_lr(call.device_lr.defined() ? call.device_lr.data<double>() : nullptr),
        skip(call.skip.defined() ? call.skip.data<float>() : nullptr) {}
  __device__ double rate() const { return device_lr ? *device_lr : lr; }
  __device__ bool skips() const { return skip && *skip != 0; }
};

/// Returns whether all tensors are dense with the layout of the parameter, which is f32 or shorter.
bool lies_alike(const UpdateSlot& slot);

/// Calls visitor.operator()<Form>() for the form of a slot.
template <class Visitor, class... Form>
__device__ void visit_form(TypeList<Form...>, WeightForm form, Visitor&& visitor) {
  int position = 0;
  ((position++ == int(form) ? visitor.template operator()<Form>() : void()), ...);
}

/// Loads the companion of a form, [i, i + n), as numbers.
template <class Form, class C>
__device__ void load_companion4(const SlotPlace& slot, int64_t i, int n, C (&values)[4]) {
  if constexpr (Form::companion.empty()) {
    for (C& value : values) value = 0;
  } else if (Form::companion_dtype(bf16) == i16) {
    for (int k = 0; k < 4; ++k)
      values[k] = k < n ? C(static_cast<const int16_t*>(slot.companion.data)[i + k]) : C(0);
  } else {
    load4(slot.companion, i, n, slot.aligned, values);
  }
}
template <class Form, class C>
__device__ void store_companion4(const SlotPlace& slot, int64_t i, int n, const C (&values)[4]) {
  if constexpr (!Form::companion.empty()) {
    if (Form::companion_dtype(bf16) == i16) {
      for (int k = 0; k < 4; ++k)
        if (k < n) static_cast<int16_t*>(slot.companion.data)[i + k] = int16_t(values[k]);
    } else {
      store4(slot.companion, i, n, slot.aligned, values);
    }
  }
}

/// Reads the weights in full precision, [i, i + n) in memory order, for any form.
template <class C>
__device__ void read_weights(const SlotPlace& slot, int64_t i, int n, C (&weights)[4]) {
  visit_form(WeightForms{}, slot.form, [&]<class Form>() {
    C companions[4]{};
    if (Form::lies != WeightLies::in_companion) load4(slot.parameter, i, n, slot.aligned, weights);
    load_companion4<Form>(slot, i, n, companions);
    for (int k = 0; k < 4; ++k) weights[k] = Form::decode(weights[k], companions[k]);
  });
}

/// Computes the random halves of elements i to i + 3, i a multiple of 4: the first two words of a
/// counter, or the last two.
__device__ inline void random_halves4(const RandomKey& key, int64_t i, uint16_t (&random)[4]) {
  const std::array<uint32_t, 4> words = Philox::words(key.seed, key.offset + uint64_t(i) / 8);
  const bool last = i / 4 % 2 != 0;
  const uint32_t pair[2] = {last ? words[2] : words[0], last ? words[3] : words[1]};
  for (int k = 0; k < 4; ++k) random[k] = uint16_t(k % 2 ? pair[k / 2] >> 16 : pair[k / 2]);
}

template <class C>
__device__ void write_weights(const SlotPlace& slot, const RandomKey& key, int64_t i, int n,
                              const C (&weights)[4]) {
  visit_form(WeightForms{}, slot.form, [&]<class Form>() {
    C parameters[4], companions[4];
    for (int k = 0; k < 4; ++k) parameters[k] = weights[k];
    if (Form::uses_rounded)
      visit_computed(slot.parameter.dtype, [&]<class T>() {
        for (int k = 0; k < 4; ++k) parameters[k] = C(widen(cast_to<T>(weights[k])));
      });
    uint16_t random[4]{};
    if (Form::uses_random) random_halves4(key, i, random);
    for (int k = 0; k < 4; ++k) {
      const KeptWeight<C> kept = Form::encode(weights[k], parameters[k], random[k]);
      parameters[k] = kept.parameter, companions[k] = kept.companion;
    }
    store4(slot.parameter, i, n, slot.aligned, parameters);
    store_companion4<Form>(slot, i, n, companions);
  });
}

/// Reads one element of any layout.
template <class C> __device__ C read_weight(const SlotPlace& slot, const Places<slot_tensors>& at) {
  C weight{};
  visit_form(WeightForms{}, slot.form, [&]<class Form>() {
    const C parameter = load_as<C>(slot.parameter, at.of[place_of_parameter]);
    C companion{};
    if constexpr (!Form::companion.empty())
      companion = load_as<C>(slot.companion, at.of[place_of_companion]);
    weight = Form::decode(parameter, companion);
  });
  return weight;
}
template <class C>
__device__ void write_weight(const SlotPlace& slot, const RandomKey& key,
                             const Places<slot_tensors>& at, C weight) {
  const int64_t place = at.of[place_of_parameter];
  visit_form(WeightForms{}, slot.form, [&]<class Form>() {
    C rounded = weight;
    if (Form::uses_rounded) {
      store_as<C>(slot.parameter, place, weight);
      rounded = load_as<C>(slot.parameter, place);
    }
    const uint16_t random = Form::uses_random ? random_half(key, uint64_t(place)) : uint16_t(0);
    const KeptWeight<C> kept = Form::encode(weight, rounded, random);
    store_as<C>(slot.parameter, place, kept.parameter);
    if constexpr (!Form::companion.empty())
      store_as<C>(slot.companion, at.of[place_of_companion], kept.companion);
  });
}

}  // namespace halftone::cuda
