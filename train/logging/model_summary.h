// A summary of a model: its parts, their parameters, and the bytes that each strategy would need.
#pragma once

#include <string>

#include <halftone/amp/strategy.h>
#include <halftone/nn/module.h>
#include <halftone/optim/optimizer.h>

namespace halftone::train {

/// Returns one line per direct child of the model and one per strategy (in MiB, without
/// activations), with an arrow at the strategy in use. Like Lightning's ModelSummary. With several
/// ranks, the bytes are those of the rank that stores most.
std::string model_summary(nn::Module& model, optim::Optimizer& optimizer,
                          const amp::Strategy& in_use, int ranks = 1);

}  // namespace halftone::train
