// Weight forms on the CPU. All conversions are exact, or round as the reference does. Forms differ
// only in what they store, never in the update.
#include <halftone/backends/cpu/update_slots.h>

#include <algorithm>

namespace halftone::cpu {

namespace {

/// Returns whether y's elements have the memory order of x, without gaps; y may be undefined.
bool lies_like(const Tensor& x, const Tensor& y) {
  if (!y.defined()) return true;
  if (x.shape() != y.shape()) return false;
  for (int d = 0; d < x.rank(); ++d)
    if (x.shape()[d] != 1 && x.strides()[d] != y.strides()[d]) return false;
  return true;
}

bool form_served(const UpdateSlot& slot) {
  const WeightFormFacts& form = facts(slot.form);
  const DType dtype = slot.parameter.dtype();
  if (form.only_bf16 && dtype != bf16) return false;
  if (!form.has_companion()) return !slot.companion.defined();
  return slot.companion.defined() && slot.companion.dtype() == form.companion_dtype(dtype);
}

}  // namespace

bool serves(const UpdateSlot& slot, StateMask needed) {
  if (!form_served(slot) || !slot.parameter.is_dense()) return false;
  for (const Tensor* x :
       {&slot.parameter, &slot.gradient, &slot.state[0], &slot.state[1], &slot.state[2]})
    if (!all_f32_or_short(*x) || !lies_like(slot.parameter, *x)) return false;
  for (std::size_t s = 0; s < slot.state.size(); ++s)
    if (DynamicStates{needed}.has(int(s)) && !slot.state[s].defined()) return false;
  if (slot.gradient_factor.defined() && slot.gradient_factor.dtype() != f32) return false;
  return lies_like(slot.parameter, slot.companion);
}

SlotBlock::SlotBlock(const UpdateSlot& slot, int64_t begin, int64_t count, UpdateBuffers& buffers)
    : slot_(slot),
      form_(facts(slot.form)),
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

uint16_t* SlotBlock::halves() const {
  return reinterpret_cast<uint16_t*>(slot_.parameter.data<BFloat16>() + begin_);
}

/// Returns the weights in full precision, for any form: in place if they are floats.
float* SlotBlock::read_weights() const {
  float* const buffer = buffers_.weight;
  if (form_.lies != WeightLies::in_both) {
    const Tensor& x = form_.lies == WeightLies::in_companion ? slot_.companion : slot_.parameter;
    if (x.dtype() == f32) return x.data<float>() + begin_;
    widen(x, begin_, count_, buffer);
    return buffer;
  }
  if (slot_.companion.dtype() == i16) {
    simd_kernels().decode_halves(slot_.form, halves(), slot_.companion.data<int16_t>() + begin_,
                                 buffer, count_);
    return buffer;
  }
  widen(slot_.parameter, begin_, count_, buffers_.parameter);
  widen(slot_.companion, begin_, count_, buffers_.companion);
  simd_kernels().decode(slot_.form, buffers_.parameter, buffers_.companion, buffer, count_);
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
  if (form_.lies != WeightLies::in_both && !form_.uses_random) {
    const bool in_place = slot_.parameter.dtype() == f32 && weight_ != buffers_.weight &&
                          form_.lies == WeightLies::in_parameter;
    if (!in_place) narrow(weight_, count_, slot_.parameter, begin_);
    return;
  }
  if (form_.has_companion() && slot_.companion.dtype() == i16)
    return simd_kernels().encode_halves(slot_.form, weight_, halves(),
                                        slot_.companion.data<int16_t>() + begin_, count_);
  if (form_.uses_rounded) {
    narrow(weight_, count_, slot_.parameter, begin_);
    widen(slot_.parameter, begin_, count_, buffers_.parameter);
  }
  uint16_t random[block_length];
  if (form_.uses_random) simd_kernels().random_halves(slot_.key, uint64_t(begin_), random, count_);
  simd_kernels().encode(slot_.form, weight_, random, buffers_.parameter, buffers_.companion,
                        count_);
  if (!form_.uses_rounded) narrow(buffers_.parameter, count_, slot_.parameter, begin_);
  if (form_.has_companion()) narrow(buffers_.companion, count_, slot_.companion, begin_);
}

void SlotBlock::finish(bool weights_moved) {
  if (weights_moved) write_weights();
  for (std::size_t s = 0; s < state_.size(); ++s)
    if (state_[s] == buffers_.state[s]) narrow(state_[s], count_, slot_.state[s], begin_);
}

}  // namespace halftone::cpu
