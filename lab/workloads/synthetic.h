// The workloads that bench/train_step measures: a model, a fixed batch of synthetic data, and the
// floating-point operations of one training step. Shapes are those of the PyTorch peer, so that the
// figures compare. What is learned there is noise: data to train on are workload.h's.
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
/// The same in one line, for messages.
std::string synthetic_list();
/// Of a training step over samples that multiply and add so often in each layer, forward; backward
/// by data and by weights are products of the same size, and the first layer's input wants no
/// gradient.
double gflop_of_step(double samples, const std::vector<double>& multiply_adds);
/// Mean cross-entropy of logits [n, classes] or [n, length, classes].
Tensor logits_loss(const Tensor& logits, const Tensor& targets);
/// On a device, weights and data from a seed; also those of untuned.h. Throws UsageError for other
/// names.
SyntheticWorkload make_synthetic(const std::string& name, Device device = {}, uint64_t seed = 0);

}  // namespace halftone::lab
