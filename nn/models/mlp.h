// The multi-layer perceptron: Linear, ReLU, Linear, ..., Linear. The workloads `mlp_tiny` {784,
// 128, 10} and `mlp` {784, 2048, 2048, 10}.
#pragma once

#include <vector>

#include <halftone/nn/sequential.h>

namespace halftone::nn::models {

/// Returns the network. sizes: input, hidden..., output. Parameters are named as in a PyTorch
/// Sequential: 0.weight, 2.weight, ...
Sequential mlp(const std::vector<int64_t>& sizes);

}  // namespace halftone::nn::models
