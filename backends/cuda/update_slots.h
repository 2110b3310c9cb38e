// Parameters on their way through an update kernel: where their tensors are, and the forms in which
// weights are kept (core/weight_form.h) on the way into registers and back.
#pragma once

#include <halftone/backends/cuda/layout.h>
#include <halftone/backends/cuda/random.h>
#include <halftone/backends/cuda/tensor_list.h>
#include <halftone/backends/cuda/values4.h>
#include <halftone/core/backend.h>
#include <halftone/core/weight_form.h>

namespace halftone::cuda {

/// The tensors of a slot as a Layout numbers them.
enum SlotTensor : int {
  place_of_parameter,
  place_of_gradient,
  place_of_companion,
  place_of_state,
  slot_tensors = place_of_state + 3
};

/// An UpdateSlot as kernels receive it.
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

struct SlotList : ItemList<SlotPlace, 21> {
  static constexpr unsigned capacity_threads = 32;
};

/// What decides a step on the device.
struct StepControl {
  double lr;
  int64_t steps;
  const double* device_lr;
  const float* skip;

  template <class Update>
  StepControl(const Update& u, int64_t steps_before)
      : lr(u.lr),
        steps(steps_before),
        device_lr(u.device_lr.defined() ? u.device_lr.template data<double>() : nullptr),
        skip(u.skip.defined() ? u.skip.template data<float>() : nullptr) {}
  __device__ double rate() const { return device_lr ? *device_lr : lr; }
  __device__ bool skips() const { return skip && *skip != 0; }
};

/// Whether all tensors are dense and laid out as the parameter, which is f32 or shorter.
bool lies_alike(const UpdateSlot& slot);

__device__ inline bool is_split(WeightForm form) {
  return form == WeightForm::split || form == WeightForm::split_rounded;
}
__device__ inline SplitFloat halves_at(const SlotPlace& slot, int64_t upper, int64_t lower) {
  return {static_cast<const BFloat16*>(slot.parameter.data)[upper],
          static_cast<const int16_t*>(slot.companion.data)[lower]};
}
__device__ inline float joined(WeightForm form, SplitFloat halves) {
  return form == WeightForm::split ? join(halves) : join_rounded(halves);
}
__device__ inline void store_halves(const SlotPlace& slot, int64_t upper, int64_t lower,
                                    float weight) {
  const SplitFloat halves = slot.form == WeightForm::split ? split(weight) : split_rounded(weight);
  static_cast<BFloat16*>(slot.parameter.data)[upper] = halves.upper;
  static_cast<int16_t*>(slot.companion.data)[lower] = halves.lower;
}

/// The weights themselves, [i, i + n) in memory order, whatever form they are kept in.
__device__ inline void read_weights(const SlotPlace& slot, int64_t i, int n, float (&weights)[4]) {
  if (is_split(slot.form)) {
    for (int k = 0; k < 4; ++k)
      if (k < n) weights[k] = joined(slot.form, halves_at(slot, i + k, i + k));
    return;
  }
  load4(slot.form == WeightForm::master ? slot.companion : slot.parameter, i, n, slot.aligned,
        weights);
  if (slot.form != WeightForm::kahan) return;
  float rests[4];
  load4(slot.companion, i, n, slot.aligned, rests);
  for (int k = 0; k < 4; ++k) weights[k] += rests[k];
}

__device__ inline void write_weights(const SlotPlace& slot, const RandomKey& key, int64_t i, int n,
                                     const float (&weights)[4]) {
  if (is_split(slot.form)) {
    for (int k = 0; k < 4; ++k)
      if (k < n) store_halves(slot, i + k, i + k, weights[k]);
    return;
  }
  if (slot.form == WeightForm::stochastic) {
    // i is a multiple of 4: elements i to i + 3 are the first two words of a counter, or the last.
    const std::array<uint32_t, 4> words = Philox::words(key.seed, key.offset + uint64_t(i) / 8);
    const bool last = i / 4 % 2 != 0;
    const uint32_t pair[2] = {last ? words[2] : words[0], last ? words[3] : words[1]};
    for (int k = 0; k < 4; ++k) {
      const auto random = uint16_t(k % 2 ? pair[k / 2] >> 16 : pair[k / 2]);
      if (k < n)
        static_cast<BFloat16*>(slot.parameter.data)[i + k] =
            round_stochastically(weights[k], random);
    }
    return;
  }
  store4(slot.parameter, i, n, slot.aligned, weights);
  if (slot.form == WeightForm::master) {
    store4(slot.companion, i, n, slot.aligned, weights);
  } else if (slot.form == WeightForm::kahan) {
    float rests[4];
    visit_trained(slot.parameter.dtype, [&]<class T>() {
      for (int k = 0; k < 4; ++k) rests[k] = weights[k] - float(widen(convert<T>(weights[k])));
    });
    store4(slot.companion, i, n, slot.aligned, rests);
  }
}

/// The same for one element of any layout.
template <class C> __device__ C read_weight(const SlotPlace& slot, const Places<slot_tensors>& at) {
  const int64_t parameter = at.of[place_of_parameter], companion = at.of[place_of_companion];
  if (is_split(slot.form)) return C(joined(slot.form, halves_at(slot, parameter, companion)));
  if (slot.form == WeightForm::master) return load_as<C>(slot.companion, companion);
  const C weight = load_as<C>(slot.parameter, parameter);
  return slot.form == WeightForm::kahan ? weight + load_as<C>(slot.companion, companion) : weight;
}
template <class C>
__device__ void write_weight(const SlotPlace& slot, const RandomKey& key,
                             const Places<slot_tensors>& at, C weight) {
  const int64_t parameter = at.of[place_of_parameter], companion = at.of[place_of_companion];
  if (is_split(slot.form)) return store_halves(slot, parameter, companion, float(weight));
  if (slot.form == WeightForm::stochastic) {
    static_cast<BFloat16*>(slot.parameter.data)[parameter] =
        round_stochastically(float(weight), random_half(key, uint64_t(parameter)));
    return;
  }
  store_as<C>(slot.parameter, parameter, weight);
  if (slot.form == WeightForm::master) store_as<C>(slot.companion, companion, weight);
  if (slot.form == WeightForm::kahan)
    store_as<C>(slot.companion, companion, weight - load_as<C>(slot.parameter, parameter));
}

}  // namespace halftone::cuda
