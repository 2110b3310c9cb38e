// Sensitivity of every module to every format of a menu, from one forward and backward per batch:
// each product is repeated locally on quantized operands, and its errors are weighted by the
// gradients of the same pass.
//
// As AutoQuantize of NVIDIA's Model-Optimizer: sum (dL/dy)^2 (dy)^2, with the error dy of a result
// y, is the expected square of the first-order change of the loss, if errors of elements are
// independent.
#pragma once

#include <string>
#include <vector>

#include <halftone/lab/trial.h>
#include <halftone/policy/session.h>

namespace halftone::lab {

/// A module under one format, over the batches of a trial.
struct OnePassScore {
  std::string path;    // of the module
  std::string format;  // a quantizer's name
  double bits = 0;     // of an element of its operands, with its share of block scales
  double flops = 0;    // of the module's products in one forward pass
  /// Predicts Measurement::loss_moved: the root of the mean over batches of sum (dL/dy)^2 (dy)^2,
  /// over the mean loss.
  double loss_change = 0;
  /// Predicts Measurement::added. Its square is the sum of
  ///   the squared error of the weights' gradients, from the replay, over |g|^2
  ///   e(y)^2 |dW of the next module|^2 / |g|^2: that reads a result with the relative error e(y);
  ///     for the last module e(y)^2
  ///   n sum (dL/dy)^2 (dy)^2 for a mean of n losses: by the Fisher matrix, how other results bend
  ///     the gradients
  ///   0.02 e(y)^2
  /// The constant was fitted to one trial per rule on three workloads.
  double added = 0;
};

/// Returns the scores of each module with products under each format, module by module in the order
/// of computation. sites: those of a pass under `base` (sites_of()); formats: names of quantizers.
/// Throws UsageError for unknown names and for a workload without products.
std::vector<OnePassScore> one_pass_scores(const Trial& trial, const policy::PolicyFile& base,
                                          const std::vector<policy::ResolvedSite>& sites,
                                          const std::vector<std::string>& formats);

}  // namespace halftone::lab
