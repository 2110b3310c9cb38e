// Converts states of other strategies into states of this one.
#pragma once

#include <halftone/optim/optimizer.h>

namespace halftone::amp {

/// How to load a state that another strategy saved.
enum class Convert {
  refuse,    // an error
  lossless,  // if this strategy can hold everything to the bit: f32 <-> o2 <-> split, kahan -> f32;
             // not frozen parameters and buffers in a shorter dtype, which have no companion
  rounding,  // rounds to what this strategy can hold
};

struct TrainingCore;
/// Rewrites a state of whole tensors as a state of the training's strategy. Throws UsageError for
/// conversions that `convert` does not allow; UsageError, ShapeError, DTypeError or FormatError for
/// damaged states.
optim::NamedTensors converted(const TrainingCore& training, const optim::NamedTensors& given,
                              Convert convert);

}  // namespace halftone::amp
