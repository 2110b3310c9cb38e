// The forms of weights on the CPU. All of this is exact, or rounds as the reference does: between
// forms only what is kept differs, never the update.
#include <halftone/backends/cpu/update_slots.h>

#include <algorithm>

namespace halftone::cpu {

namespace {

/// The elements of y in the memory order of x, without holes; y may be undefined.
bool lies_like(const Tensor& x, const Tensor& y) {
  if (!y.defined()) return true;
  if (x.shape() != y.shape()) return false;
  for (int d = 0; d < x.rank(); ++d)
    if (x.shape()[d] != 1 && x.strides()[d] != y.strides()[d]) return false;
  return true;
}

bool form_served(const UpdateSlot& slot) {
  const bool is_bf16 = slot.parameter.dtype() == bf16;
  const auto companion_is = [&](DType dtype) {
    return slot.companion.defined() && slot.companion.dtype() == dtype;
  };
  switch (slot.form) {
    case WeightForm::plain: return !slot.companion.defined();
    case WeightForm::master: return companion_is(f32);
    case WeightForm::split:
    case WeightForm::split_rounded: return is_bf16 && companion_is(i16);
    case WeightForm::kahan: return companion_is(slot.parameter.dtype());
    case WeightForm::stochastic: return is_bf16 && !slot.companion.defined();
  }
  return false;
}

bool is_split(const UpdateSlot& slot) {
  return slot.form == WeightForm::split || slot.form == WeightForm::split_rounded;
}
uint16_t* upper_halves(const UpdateSlot& slot, int64_t begin) {
  return reinterpret_cast<uint16_t*>(slot.parameter.data<BFloat16>() + begin);
}
uint16_t* lower_halves(const UpdateSlot& slot, int64_t begin) {
  return reinterpret_cast<uint16_t*>(slot.companion.data<int16_t>() + begin);
}

}  // namespace

bool serves(const UpdateSlot& slot, const std::array<bool, 3>& needed) {
  if (!form_served(slot) || !slot.parameter.is_dense()) return false;
  for (const Tensor* x :
       {&slot.parameter, &slot.gradient, &slot.state[0], &slot.state[1], &slot.state[2]})
    if (!all_f32_or_short(*x) || !lies_like(slot.parameter, *x)) return false;
  for (std::size_t s = 0; s < needed.size(); ++s)
    if (needed[s] && !slot.state[s].defined()) return false;
  if (slot.gradient_factor.defined() && slot.gradient_factor.dtype() != f32) return false;
  return lies_like(slot.parameter, slot.companion);
}

void bump_versions(const UpdateSlot& slot) {
  for (const Tensor* x :
       {&slot.parameter, &slot.companion, &slot.state[0], &slot.state[1], &slot.state[2]})
    if (x->defined()) x->storage()->bump_version();
}

SlotBlock::SlotBlock(const UpdateSlot& slot, int64_t begin, int64_t count, UpdateBuffers& buffers)
    : slot_(slot),
      begin_(begin),
      count_(count),
      buffers_(buffers),
      weight_(read_weights()),
      gradient_(read_gradient()) {
  for (std::size_t s = 0; s < state_.size(); ++s) {
    const Tensor& state = slot.state[s];
    if (!state.defined()) continue;
    const bool in_place = state.dtype() == f32;
    state_[s] = in_place ? state.data<float>() + begin : buffers.state[s];
    if (!in_place) widen(state, begin, count, state_[s]);
  }
}

/// The weights themselves, whatever form they are kept in.
float* SlotBlock::read_weights() const {
  float* const buffer = buffers_.weight;
  const simd::Kernels& k = simd_kernels();
  if (slot_.form == WeightForm::master) return slot_.companion.data<float>() + begin_;
  if (slot_.form == WeightForm::plain && slot_.parameter.dtype() == f32)
    return slot_.parameter.data<float>() + begin_;
  if (is_split(slot_)) {
    k.join_halves(slot_.form == WeightForm::split_rounded, upper_halves(slot_, begin_),
                  lower_halves(slot_, begin_), buffer, count_);
    return buffer;
  }
  widen(slot_.parameter, begin_, count_, buffer);
  if (slot_.form == WeightForm::kahan) {
    widen(slot_.companion, begin_, count_, buffers_.rest);
    k.accumulate(buffers_.rest, buffer, count_);
  }
  return buffer;
}

const float* SlotBlock::read_gradient() const {
  const float* gradient = floats(slot_.gradient, begin_, 1, count_, buffers_.gradient);
  if (!slot_.gradient_factor.defined()) return gradient;
  if (gradient != buffers_.gradient) std::copy_n(gradient, count_, buffers_.gradient);
  simd_kernels().scale(*slot_.gradient_factor.data<float>(), buffers_.gradient, count_);
  return buffers_.gradient;
}

void SlotBlock::write_weights() const {
  const simd::Kernels& k = simd_kernels();
  switch (slot_.form) {
    case WeightForm::split:
    case WeightForm::split_rounded:
      return k.split_halves(slot_.form == WeightForm::split_rounded, weight_,
                            upper_halves(slot_, begin_), lower_halves(slot_, begin_), count_);
    case WeightForm::stochastic:
      return k.round_stochastically(weight_, slot_.key, uint64_t(begin_),
                                    upper_halves(slot_, begin_), count_);
    case WeightForm::kahan:
      narrow(weight_, count_, slot_.parameter, begin_);
      widen(slot_.parameter, begin_, count_, buffers_.rest);
      k.subtract(buffers_.rest, weight_, count_);
      return narrow(weight_, count_, slot_.companion, begin_);
    case WeightForm::plain:
      if (weight_ != buffers_.weight) return;
      [[fallthrough]];
    case WeightForm::master: return narrow(weight_, count_, slot_.parameter, begin_);
  }
}

void SlotBlock::finish() {
  write_weights();
  for (std::size_t s = 0; s < state_.size(); ++s)
    if (state_[s] == buffers_.state[s]) narrow(state_[s], count_, slot_.state[s], begin_);
}

}  // namespace halftone::cpu
