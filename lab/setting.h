// Helpers that several experiments use: a policy in a line, a model of plain weights, hashes.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <halftone/amp/training.h>
#include <halftone/autograd/ops.h>
#include <halftone/nn/models/models.h>
#include <halftone/nn/nn.h>
#include <halftone/optim/optim.h>
#include <halftone/policy/policy_file.h>

namespace halftone::lab {

/// Returns the policy of the file {"name": name, "extends": extends, more...}, see
/// docs/policy_files.md.
///   policy_of("nearest", "amp-bf16", R"("optimizer": {"parameters": "bf16"})")
amp::Strategy policy_of(std::string_view name, std::string_view extends, std::string_view more);

/// Returns the FNV-1a hash of dtypes, shapes and bits, as 16 hexadecimal digits.
std::string hash_of(std::span<const Tensor> tensors);

/// A model with one vector of weights, to test updates alone; the experiment writes the gradients.
struct Weights final : nn::Module {
  nn::Parameter w;
  explicit Weights(const Tensor& initial) : w(initial) {}
  void describe(nn::Fields& field) override { field("w", w); }
};

/// Returns sqrt(mean x^2).
double root_mean_square(std::span<const double> x);

/// Returns 10 log10(sum x^2 / sum (x - y)^2), computed in f64.
double signal_to_noise(const Tensor& x, const Tensor& y);

}  // namespace halftone::lab
