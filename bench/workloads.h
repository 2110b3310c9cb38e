// The workloads that bench/train_step measures: a model, a fixed batch of synthetic data, and the
// floating-point operations of one training step. Shapes are those of the PyTorch peer, so that the
// figures compare.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <halftone/halftone.h>

namespace bench {

struct Workload {
  std::string name;
  std::unique_ptr<halftone::nn::Layer> model;
  halftone::Tensor inputs, targets;
  double gflop = 0;  // twice the multiply-adds of matrix products and convolutions, all passes
};

std::vector<std::string> workload_names();
/// The same in one line, for messages.
std::string workload_list();
/// Mean cross-entropy of logits [n, classes] or [n, length, classes].
halftone::Tensor loss_of(const halftone::Tensor& logits, const halftone::Tensor& targets);
/// On a device. Throws UsageError for other names.
Workload make_workload(const std::string& name, halftone::Device device = {});

}  // namespace bench
