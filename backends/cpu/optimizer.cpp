// Updates parameters in one pass, block by block: a slot's stored values become contiguous floats,
// the optimizer's float kernel runs, and the results are stored in the slot's weight form
// (core/update_rules.h). f32 tensors are updated in place.
#include <algorithm>
#include <atomic>

#include <halftone/backends/cpu/cpu_backend.h>
#include <halftone/backends/cpu/staging.h>
#include <halftone/backends/reference/reference.h>
#include <halftone/core/backend.h>
#include <halftone/core/formats/coded_form.h>

namespace halftone::cpu {

/// Floats of the present block; they stay in the first-level cache.
struct UpdateBuffers {
  alignas(64) float weight[block_length];
  alignas(64) float gradient[block_length];
  alignas(64) float state[3][block_length];
  alignas(64) float parameter[block_length];
  alignas(64) float companion[block_length];
};

static_assert(block_length % most_coded_together == 0 && list_piece % block_length == 0,
              "whole coded blocks");

/// Elements begin .. begin + count of a slot, in memory order.
class SlotBlock {
 public:
  SlotBlock(const UpdateSlot& slot, int64_t begin, int64_t count, UpdateBuffers& buffers);
  SlotBlock(const SlotBlock&) = delete;
  SlotBlock& operator=(const SlotBlock&) = delete;
  /// Writes the kernel's results back from the buffers; the weights only if they changed.
  void finish(bool weights_moved);

  int64_t count() const { return count_; }
  float* weight() const { return weight_; }
  const float* gradient() const { return gradient_; }
  /// null if the slot has none
  float* const* states() const { return state_.data(); }

 private:
  /// returns the blocks of a coded state
  uint8_t* blocks(std::size_t s) const;
  /// returns a bf16 parameter's bits
  uint16_t* halves() const;
  float* read_weights() const;
  const float* read_gradient() const;
  void write_weights() const;

  const UpdateSlot& slot_;
  const WeightFormFacts& form_;
  int64_t begin_, count_;
  UpdateBuffers& buffers_;
  float* weight_;
  const float* gradient_;
  std::array<float*, 3> state_{};
};

/// Returns whether SlotBlock supports a slot: f32 and short floats, all tensors with one layout
/// without gaps. `needed`: the states that the update requires.
bool serves(const UpdateSlot& slot, StateMask needed);

}  // namespace halftone::cpu

// Optimizer steps over all tensors at once, each in one pass over memory, for all dtypes and weight
// forms (SlotBlock, above). f64 and tensors whose layout differs from their parameter's go to the
// reference, slot by slot. A skipped update returns before it touches anything, including storage
// versions.

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

// Weight forms on the CPU. All conversions are exact, or round as the reference does. Forms differ
// only in what they store, never in the update.

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
  const auto is_served = [&](const Tensor& x) {
    return all_f32_or_short(x) && lies_like(slot.parameter, x);
  };
  if (!is_served(slot.parameter) || !is_served(slot.gradient)) return false;
  for (std::size_t s = 0; s < slot.state.size(); ++s) {
    if (DynamicStates{needed}.has(int(s)) && !slot.state[s].defined()) return false;
    if (!slot.stored[s].coded() && !is_served(slot.state[s])) return false;
  }
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
    if (slot.stored[s].coded()) {
      state_[s] = buffers.state[s];
      simd_kernels().decode_blocks(codec_of(slot.stored[s]), blocks(s), count, state_[s]);
      continue;
    }
    const bool in_place = state.dtype() == f32;
    state_[s] = in_place ? state.data<float>() + begin : buffers.state[s];
    if (!in_place) widen(state, begin, count, state_[s]);
  }
}

uint8_t* SlotBlock::blocks(std::size_t s) const {
  const CodedFormFacts form = facts(slot_.stored[s].form);
  return slot_.state[s].data<uint8_t>() + begin_ / form.block * form.block_bytes();
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
    if (slot_.stored[s].coded())
      simd_kernels().encode_blocks(codec_of(slot_.stored[s]), state_[s], count_, blocks(s));
    else if (state_[s] == buffers_.state[s]) narrow(state_[s], count_, slot_.state[s], begin_);
}

}  // namespace halftone::cpu

// Coded tensors, in pieces of whole blocks.

namespace halftone {

void CpuBackend::decode_blocks(const Tensor& blocks, Coding storage, Tensor& x) {
  const CodedFormFacts form = facts(storage.form);
  const Codec& codec = codec_of(storage);
  const uint8_t* const bytes = blocks.data<uint8_t>();
  x.raw_data();
  reference::parallel_pieces(x.numel(), cpu::list_piece, [&](int64_t begin, int64_t end) {
    alignas(64) float buffer[cpu::block_length];
    for (int64_t at = begin; at < end; at += cpu::block_length) {
      const int64_t n = std::min(cpu::block_length, end - at);
      const uint8_t* const first = bytes + at / form.block * form.block_bytes();
      float* const y = x.dtype() == f32 ? x.data<float>() + at : buffer;
      simd_kernels().decode_blocks(codec, first, n, y);
      if (y == buffer) cpu::narrow(buffer, n, x, at);
    }
  });
  x.storage()->bump_version();
}

void CpuBackend::encode_blocks(const Tensor& x, const Tensor& skip, Coding storage,
                               Tensor& blocks) {
  if (skip.defined() && *skip.data<float>() != 0) return;
  const CodedFormFacts form = facts(storage.form);
  const Codec& codec = codec_of(storage);
  uint8_t* const bytes = blocks.data<uint8_t>();
  x.raw_data();
  reference::parallel_pieces(x.numel(), cpu::list_piece, [&](int64_t begin, int64_t end) {
    alignas(64) float buffer[cpu::block_length];
    for (int64_t at = begin; at < end; at += cpu::block_length) {
      const int64_t n = std::min(cpu::block_length, end - at);
      if (x.dtype() != f32) cpu::widen(x, at, n, buffer);
      simd_kernels().encode_blocks(codec, x.dtype() == f32 ? x.data<float>() + at : buffer, n,
                                   bytes + at / form.block * form.block_bytes());
    }
  });
  blocks.storage()->bump_version();
}

}  // namespace halftone

// Operations on all gradients between backward and the step: unscaling, norms, clipping. One pass
// over dense tensors of f32 and short floats; the reference handles the others.

namespace halftone {

namespace {
bool served(const Tensor& x) { return cpu::is_f32_or_short(x) && x.is_dense(); }
std::optional<int64_t> size_if_served(const Tensor& x) {
  return served(x) ? std::optional(x.numel()) : std::nullopt;
}

/// Calls kernel(x, y, n) over a piece of a tensor, in place or block by block; y is x.
template <class Kernel>
void rewrite(const Tensor& x, int64_t begin, int64_t end, const Kernel& kernel) {
  if (x.dtype() == f32) {
    float* values = x.data<float>() + begin;
    return kernel(values, values, end - begin);
  }
  alignas(64) float buffer[cpu::block_length];
  for (int64_t at = begin; at < end; at += cpu::block_length) {
    const int64_t n = std::min(cpu::block_length, end - at);
    cpu::widen(x, at, n, buffer);
    kernel(buffer, buffer, n);
    cpu::narrow(buffer, n, x, at);
  }
}

/// Calls use(x, n) for a piece of a tensor, at once or block by block.
template <class Use> void read(const Tensor& x, int64_t begin, int64_t end, const Use& use) {
  if (x.dtype() == f32) return use(x.data<float>() + begin, end - begin);
  alignas(64) float buffer[cpu::block_length];
  for (int64_t at = begin; at < end; at += cpu::block_length) {
    const int64_t n = std::min(cpu::block_length, end - at);
    cpu::widen(x, at, n, buffer);
    use(buffer, n);
  }
}
}  // namespace

void CpuBackend::scale_all(std::span<Tensor> tensors, const Tensor& factor) {
  const auto scale = float(reference::load_one(factor, 0));
  const auto kernel = [scale, &k = simd_kernels()](const float*, float* values, int64_t n) {
    k.scale(scale, values, n);
  };
  cpu::in_lists(tensors, [&](std::span<Tensor> list) {
    const cpu::ListSizes sizes(list, size_if_served);
    cpu::parallel_list(sizes, [&](std::size_t i, int64_t begin, int64_t end, int64_t /*number*/) {
      rewrite(list[i], begin, end, kernel);
    });
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (sizes.served(i)) list[i].storage()->bump_version();
      else ReferenceBackend::scale_all(list.subspan(i, 1), factor);
    }
  });
}

void CpuBackend::unscale(std::span<Tensor> tensors, const Tensor& factor, Tensor& found_inf) {
  const float scale = factor.defined() ? float(reference::load_one(factor, 0)) : 1.0f;
  std::atomic<bool> found = false;
  const auto kernel = [&, &k = simd_kernels()](const float* x, float* y, int64_t n) {
    if (!k.unscale(x, scale, y, n)) found.store(true, std::memory_order_relaxed);
  };
  const auto check = [&](const float* x, int64_t n) { kernel(x, nullptr, n); };
  cpu::in_lists(tensors, [&](std::span<Tensor> list) {
    const cpu::ListSizes sizes(list, size_if_served);
    cpu::parallel_list(sizes, [&](std::size_t i, int64_t begin, int64_t end, int64_t /*number*/) {
      if (factor.defined()) rewrite(list[i], begin, end, kernel);
      else read(list[i], begin, end, check);
    });
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (!sizes.served(i)) ReferenceBackend::unscale(list.subspan(i, 1), factor, found_inf);
      else if (factor.defined()) list[i].storage()->bump_version();
    }
  });
  if (found) reference::store_one(1, found_inf, 0);
}

void CpuBackend::sum_of_squares(std::span<const Tensor> tensors, Tensor& total) {
  if (!std::all_of(tensors.begin(), tensors.end(), served))
    return ReferenceBackend::sum_of_squares(tensors, total);
  double sum = 0;
  cpu::in_lists(tensors, [&](std::span<const Tensor> list) {
    const cpu::ListSizes sizes(list, size_if_served);
    // One sum per piece, added up in the order of the pieces: the number of threads has no effect.
    cpu::Workspace<double> partial(sizes.pieces());
    cpu::parallel_list(
        sizes, [&, &k = simd_kernels()](std::size_t i, int64_t begin, int64_t end, int64_t number) {
          double piece = 0;
          read(list[i], begin, end,
               [&](const float* x, int64_t n) { piece += k.sum_of_squares(x, n); });
          partial[number] = piece;
        });
    for (int64_t piece = 0; piece < partial.size(); ++piece) sum += partial[piece];
  });
  reference::store_one(sum, total, 0);
}

}  // namespace halftone
