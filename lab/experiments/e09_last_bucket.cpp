// E9. The residual MLP (lab/workload.h) under MXFP8 for everything that its operations
// read, weights of normalizations included. These weights are near 1: in a block whose largest
// number is in (0.875, 1), OCP's rule takes the scale 2^-9. The numbers then become (448, 512) in
// e4m3, whose largest number is 448. The effect on gradients is also measured. Spikes of the loss,
// which were published from runs of days, are not part of the check.
#include <cmath>

#include <halftone/lab/experiments/experiments.h>
#include <halftone/lab/setting.h>
#include <halftone/lab/table.h>
#include <halftone/lab/trial.h>

namespace halftone::lab {
namespace e09 {

Quantizer mx(ScaleRule rule) {
  Quantizer quantizer = *quantizer_named("mxfp8");
  quantizer.scaling.rule = rule;
  return quantizer;
}

struct Counts {
  double in_reach = 0, saturated = 0, bias = 0, sum = 0;
};

/// Counts weights in (0.875, 1) in blocks without a 1, and those of them that saturate.
void count(const Tensor& weight, ScaleRule rule, Counts& counts) {
  const std::vector<float> x = weight.to_vector<float>(),
                           y = quantize(weight, mx(rule)).to_vector<float>();
  for (std::size_t begin = 0; begin < x.size(); begin += 32) {
    float largest = 0;
    for (std::size_t i = begin; i < std::min(begin + 32, x.size()); ++i)
      largest = std::max(largest, std::abs(x[i]));
    for (std::size_t i = begin; i < std::min(begin + 32, x.size()); ++i) {
      counts.bias += y[i] - x[i], counts.sum += std::abs(x[i]);
      // Numbers within half a spacing of 448 / 512 round to it and do not saturate.
      if (largest >= 1 || std::abs(x[i]) <= 0.90625f) continue;
      ++counts.in_reach;
      counts.saturated += std::abs(y[i]) == 0.875f;
    }
  }
}

/// Uses the weight decay of language models, which moves weights of normalizations below 1.
Workload decaying(uint64_t seed) {
  Workload work = make_workload("residual_mlp", seed);
  work.optimizer = [](std::vector<Tensor> parameters, double lr) {
    return std::make_unique<optim::AdamW>(std::move(parameters),
                                          optim::AdamWOptions{.lr = lr, .weight_decay = 0.1});
  };
  work.lr = 1e-3;
  return work;
}

std::string policy_text(const char* rule) {
  return R"("quantizers": {"mx": {"like": "mxfp8", "scale": {"per": "block", "block": [1, 32],
              "format": "e8m0", "rule": ")" +
         std::string(rule) + R"("}}},
            "rules": [{"match": {"op": ["linear", "layer_norm"]}, "input": "mx", "weight": "mx",
                       "grad_output": "mx"}])";
}

void run(Findings& found) {
  Table table({"seed", "rule", "weights of norms in reach", "at 0.875", "bias of norms' weights",
               "gradients' error", "of the loss"});
  for (uint64_t seed = 9; seed < (found.thorough() ? 14 : 10); ++seed) {
    const Trial trial([seed] { return decaying(seed); }, amp::Strategy::named("fp32"),
                      {.batches = 8, .warm_up = 600, .seed = seed});
    for (const auto& [name, rule] :
         {std::pair{"floor", ScaleRule::floor}, {"rceil", ScaleRule::rceil}}) {
      Counts counts;
      for (const auto& [parameter, x] : trial.weights())
        if (parameter.ends_with("norm.weight")) count(x, rule, counts);
      const Measurement measured =
          trial.measure(policy::file_of(policy_of(name, "fp32", policy_text(name))));
      table.row({std::to_string(seed), name, number(counts.in_reach), number(counts.saturated),
                 percent(counts.bias / counts.sum), percent(measured.error),
                 number(measured.loss_error, 2)});
      const std::string rule_name = name;
      found.at_least(rule_name + ", weights in reach", counts.in_reach, 8);
      found.exactly(rule_name + ", of them at the last number", counts.saturated / counts.in_reach,
                    rule == ScaleRule::floor ? 1 : 0);
    }
  }
  found.out() << table;
}

}  // namespace e09

const Experiment found::e9{
    "E9",
    "Under OCP's rule for MX scales, weights of normalizations all round to the last number of "
    "e4m3; under a rule that rounds scales up none does (arXiv 2506.20752 found trainings that "
    "diverge for this reason).",
    e09::run};

}  // namespace halftone::lab
