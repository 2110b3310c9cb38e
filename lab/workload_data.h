// The workloads that bench/train_step measures: a model, a fixed batch of synthetic data, and the
// floating-point operations of one training step. Shapes are those of the PyTorch peer, so that the
// figures can be compared. The data are noise; workloads with data to learn are in workload.h.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <halftone/core/device.h>
#include <halftone/nn/module.h>

namespace halftone::lab {

struct SyntheticWorkload {
  std::string name{};
  std::unique_ptr<nn::Layer> model;
  Tensor inputs, targets;
  double gflop = 0;  // twice the multiply-adds of matrix products and convolutions, all passes
};

std::vector<std::string> synthetic_names();
/// Returns the names in one line, for messages.
std::string synthetic_list();
/// Returns the GFLOP of a training step over `samples` samples. `multiply_adds` has the
/// multiply-adds of each layer's forward pass for one sample. The backward products by data and by
/// weights have the same size; the first layer's input needs no gradient.
double gflop_of_step(double samples, const std::vector<double>& multiply_adds);
/// Returns the mean cross-entropy of logits [n, classes] or [n, length, classes].
Tensor logits_loss(const Tensor& logits, const Tensor& targets);
/// Returns a workload on a device, with weights and data from a seed; also those of untuned.h.
/// Throws UsageError for unknown names.
SyntheticWorkload make_synthetic(const std::string& name, Device device = {}, uint64_t seed = 0);

}  // namespace halftone::lab
