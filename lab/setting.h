// What settings of experiments have in common: a policy in a line, a model of numbers, hashes.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <halftone/amp/training.h>
#include <halftone/autograd/ops.h>
#include <halftone/nn/models/mlp.h>
#include <halftone/nn/nn.h>
#include <halftone/optim/optim.h>
#include <halftone/policy/file/policy_file.h>

namespace halftone::lab {

/// The policy file {"name": name, "extends": extends, more...}, see docs/policy_files.md.
///   policy_of("nearest", "amp-bf16", R"("optimizer": {"parameters": "bf16"})")
amp::Strategy policy_of(std::string_view name, std::string_view extends, std::string_view more);

/// FNV-1a of dtypes, shapes and bits, in 16 hexadecimal digits.
std::string hash_of(std::span<const Tensor> tensors);

/// A model that is one vector of weights: for updates alone, whose gradients a setting writes.
struct Weights final : nn::Module {
  nn::Parameter w;
  explicit Weights(const Tensor& initial) : w(initial) {}
  void describe(nn::Fields& field) override { field("w", w); }
};

/// sqrt(mean x^2).
double root_mean_square(std::span<const double> x);

/// 10 log10(sum x^2 / sum (x - y)^2), in f64.
double signal_to_noise(const Tensor& x, const Tensor& y);

}  // namespace halftone::lab
