// A training with gradients of any small size, for E7 and the picture of the loss scale.
#pragma once

#include <string>
#include <vector>

#include <halftone/amp/training.h>
#include <halftone/core/formats/survey.h>

namespace halftone::lab {

struct SmallGradientRun {
  double accuracy = 0, untrained = 0;
  Survey output_gradients{};        // all three layers together
  std::vector<Survey> gradients{};  // one for each layer and each kind of gradient
};

/// An MLP of 64-128-64-10 learns ten clusters of random vectors, 300 steps of AdamW, from a loss
/// that is multiplied by `loss_weight`. Gradients are surveyed every tenth step.
SmallGradientRun train_small_gradients(const amp::Strategy& strategy, double loss_weight);

/// Returns amp-fp16 with a loss scale in the syntax of policy files.
amp::Strategy f16_with(const std::string& loss_scale);

}  // namespace halftone::lab
