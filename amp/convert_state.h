// States of other strategies, rewritten as one of ours.
#pragma once

#include <halftone/optim/optimizer.h>

namespace halftone::amp {

/// What loading does with a state that another strategy saved.
enum class Convert {
  refuse,    // an error
  lossless,  // if this strategy can hold everything to the bit: f32 <-> o2 <-> split, kahan -> f32;
             // not frozen parameters and buffers in a shorter dtype, which have no companion
  rounding,  // rounds to what this strategy can hold
};

struct TrainingCore;
/// `given`, of whole tensors, as a state of the training's strategy. Throws UsageError and its kin
/// for what `convert` does not allow, and for damaged states.
optim::NamedTensors converted(const TrainingCore& training, const optim::NamedTensors& given,
                              Convert convert);

}  // namespace halftone::amp
