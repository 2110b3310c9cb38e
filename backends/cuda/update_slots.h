// Parameters in an update kernel: where their tensors are, and the conversion of weight forms
// (core/update_rules.h) into registers and back.
#pragma once

#include <halftone/backends/cuda/layout.h>
#include <halftone/backends/cuda/random.h>
#include <halftone/backends/cuda/tensor_list.h>
#include <halftone/backends/cuda/values4.h>
#include <halftone/core/backend.h>
#include <halftone/core/update_rules.h>

namespace halftone::cuda {

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
