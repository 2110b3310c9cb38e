// checkpoint: trades time for memory. A segment runs and stores only its inputs. Backward runs it
// again, recording, and goes through that record (Chen et al. 2016, "Training deep nets with
// sublinear memory cost").
#pragma once

#include <functional>
#include <vector>

#include <halftone/autograd/apply.h>
#include <halftone/autograd/slots.h>
#include <halftone/core/random.h>

namespace halftone {

using Segment = std::function<Tensor(const std::vector<Tensor>&)>;

/// The segment as a node. It is always recorded: parameters that require gradients are hidden in
/// the closure.
struct Checkpoint {
  static constexpr OpInfo info{"checkpoint", CastClass::as_is, {}, {.once = true}};
  static constexpr bool always_recorded = true;
  Segment segment;
  std::shared_ptr<InputCaster> caster;  // the precision region the segment was recorded in
  RandomKey random_state;               // so that recomputed dropout masks are the same
  CallScope::Place place{};             // its call scope, so that a second run finds the same sites
  std::vector<Tensor> inputs{};
  std::vector<bool> wanted{};  // inputs that require gradients
  ListOfHeldBuffers before{};  // the buffers that the first run wrote, as it found them

  Tensor forward(std::span<const Tensor> in);
  std::vector<Tensor> backward(const Tensor& dy) const;
};

/// Returns segment(inputs), and recomputes its activations in backward. Gradients reach the inputs
/// and every parameter that the segment uses. The segment runs twice, and must compute the same
/// twice: random numbers and the buffers of modules are those of the first run, and what the second
/// run writes into buffers or measures for running statistics is dropped. As
/// torch.utils.checkpoint, which updates buffers twice.
Tensor checkpoint(Segment segment, const std::vector<Tensor>& inputs);

}  // namespace halftone
