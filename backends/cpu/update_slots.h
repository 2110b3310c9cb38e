// Updates parameters in one pass, block by block: a slot's stored values become contiguous floats,
// the optimizer's float kernel runs, and the results are stored in the slot's weight form
// (core/update_rules.h). f32 tensors are updated in place.
#pragma once

#include <halftone/core/backend.h>
#include <halftone/backends/cpu/staging.h>

namespace halftone::cpu {

/// Floats of the present block; they stay in the first-level cache.
struct UpdateBuffers {
  alignas(64) float weight[block_length];
  alignas(64) float gradient[block_length];
  alignas(64) float state[3][block_length];
  alignas(64) float parameter[block_length];
  alignas(64) float companion[block_length];
};

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
