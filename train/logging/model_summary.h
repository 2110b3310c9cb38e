// A model on a page: its parts, their parameters, and the bytes that each strategy would need.
#pragma once

#include <string>

#include <halftone/amp/strategy.h>
#include <halftone/nn/module.h>
#include <halftone/optim/optimizer.h>

namespace halftone::train {

/// One line per direct child of the model and one per strategy (in MiB, without activations); an
/// arrow at the strategy that is in use. As Lightning's ModelSummary. Of several ranks the bytes
/// are those of the one that keeps most.
std::string model_summary(nn::Module& model, optim::Optimizer& optimizer,
                          const amp::Strategy& in_use, int ranks = 1);

}  // namespace halftone::train
