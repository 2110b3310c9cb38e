// Workloads of linear layers only, whose errors and bits a test can compute.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <halftone/autograd/ops.h>
#include <halftone/core/factory.h>
#include <halftone/core/random.h>
#include <halftone/data/dataset.h>
#include <halftone/lab/workload.h>
#include <halftone/nn/nn.h>
#include <halftone/policy/policy.h>

namespace halftone::test {

/// Regression by layers of these widths, without activations, on `rows` normal numbers.
inline lab::Workload linear_workload(const std::vector<int64_t>& widths, int64_t rows = 32,
                                     int64_t batch = 8) {
  manual_seed(6);
  auto model = std::make_unique<nn::Sequential>();
  for (std::size_t i = 0; i + 1 < widths.size(); ++i)
    model->add(nn::Linear(widths[i], widths[i + 1]));
  const Tensor x = randn({rows, widths.front()}), y = randn({rows, widths.back()});
  return {.task = train::regression(static_cast<nn::Layer&>(*model)),
          .model = std::move(model),
          .train = [x, y, batch] {
            return data::DataLoader(data::TensorDataset(x, y), {.batch_size = batch});
          }};
}

/// A list with the workload "small": one linear layer, and batches in an order that depends on the
/// seed.
inline std::vector<lab::NamedWorkload> small() {
  return {{"small", "", [](uint64_t seed) {
             auto model = std::make_unique<nn::Linear>(4, 3);
             const data::TensorDataset data(randn({24, 4}), randn({24, 3}));
             return lab::Workload{
                 .task = train::regression(*model), .model = std::move(model), .train = [=] {
                   return data::DataLoader(data, {.batch_size = 8, .shuffle = true, .seed = seed});
                 }};
           }}};
}

/// The rules of {"rules": [...]}, over fp32.
inline std::vector<policy::Rule> rules_of(const std::string& list) {
  const std::string text =
      R"({"halftone_policy": 1, "name": "s", "extends": "fp32", "rules": [)" + list + "]}";
  return policy::read_text(text, "rules").rules.rules;
}

/// A rule that puts the weight of the layer `path` on a grid.
inline std::string weight_rule(const std::string& name, const std::string& path,
                               const std::string& quantizer) {
  return R"({"name": ")" + name + R"(", "match": {"op": "linear", "path": ")" + path +
         R"("}, "weight": ")" + quantizer + "\"}";
}

}  // namespace halftone::test
