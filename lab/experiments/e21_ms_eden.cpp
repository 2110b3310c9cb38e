// E21. Two ways to round gradients to NVFP4: stochastic rounding of each number, and
// MS-EDEN (Quartet II, arXiv 2601.22813), which rotates with random signs, rounds numbers to
// nearest, and moves the bias of each block into its scale. The forward passes are the same. First
// the squared error and the bias on normal numbers, then trainings of a small GPT. NVFP4's recipe
// rounds block scales to nearest, so the largest numbers of a block may saturate: its stochastic
// rounding is not exactly unbiased.
#include <cmath>

#include <halftone/lab/experiments/experiments.h>
#include <halftone/lab/experiments/paired.h>
#include <halftone/lab/setting.h>
#include <halftone/lab/table.h>

namespace halftone::lab {
namespace e21 {

Quantizer ms_eden() {
  Quantizer quantizer = *quantizer_named("nvfp4");
  quantizer.hadamard = 32, quantizer.draws_signs = true;
  quantizer.scaling.targets = {6.0721f};
  quantizer.scaling.scale_max = 256;
  quantizer.scaling.scale_rounding = Rounding::stochastic, quantizer.scaling.corrected = true;
  return quantizer;
}

Quantizer stochastic() {
  Quantizer quantizer = *quantizer_named("nvfp4");
  quantizer.hadamard = 32, quantizer.draws_signs = true;
  quantizer.rounding = Rounding::stochastic;
  return quantizer;
}

struct Errors {
  double squared = 0;  // mean square error over mean square
  double bias = 0;     // of the mean of all draws, in standard errors of that mean
};

Errors errors_of(const Quantizer& quantizer) {
  constexpr int64_t draws = 64;
  manual_seed(21);
  const Tensor x = randn({64, 1024}, f64);
  const Tensor narrow = cast(x, f32);
  Tensor sum = zeros({64, 1024}, f64);
  Errors errors;
  double squares = 0;
  for (int64_t i = 0; i < draws; ++i) {
    const Tensor error = cast(quantize(narrow, quantizer), f64) - cast(narrow, f64);
    squares += halftone::sum(error * error).item();
    sum = sum + error;
  }
  errors.squared = squares / double(draws) / halftone::sum(x * x).item();
  // The projection on x finds shrinkage, which is the bias of rounding to nearest after a scale.
  const double along = halftone::sum(sum * cast(narrow, f64)).item() / double(draws);
  errors.bias = along / std::sqrt(errors.squared * halftone::sum(x * x).item() / double(draws));
  return errors;
}

/// quartet2.json with stochastic rounding of each number in backward.
amp::Strategy with_stochastic_rounding() {
  return policy_of("stochastic", "amp-bf16", R"(
    "quantizers": {
      "forward": {"format": "e2m1", "scale": {"per": "block", "block": [1, 16], "format": "e4m3",
        "tensor_level": true, "scale_max": 256, "choose": {"from": [6, 4], "by": "mse"}}},
      "backward": {"format": "e2m1", "hadamard": {"size": 32, "signs": "step"},
        "rounding": "stochastic",
        "scale": {"per": "block", "block": [1, 16], "format": "e4m3", "tensor_level": true}}},
    "rules": [{"match": {"op": "linear", "except": "lm_head"}, "compute": "f32", "result": "bf16",
      "input": "forward", "weight": "forward", "grad_output": "backward",
      "weight.backward": "backward", "input.backward": "backward",
      "grad_output.weight": "backward"}],
    "loss_scale": "none", "seed": 17)");
}

void run(Findings& found) {
  const Errors eden = errors_of(ms_eden()), rounded = errors_of(stochastic());
  Table table({"normal numbers", "squared error", "shrinkage, in standard errors"});
  table.row({"MS-EDEN", fixed(eden.squared, 5), fixed(eden.bias, 2)});
  table.row({"stochastic", fixed(rounded.squared, 5), fixed(rounded.bias, 2)});
  found.out() << table << '\n';
  found.at_least("squared error, stochastic over MS-EDEN", rounded.squared / eden.squared, 2);
  found.within("shrinkage of MS-EDEN, in standard errors", eden.bias, -3, 3);
  found.at_most("shrinkage of stochastic rounding, in standard errors", rounded.bias, -3);

  const PolicyOnDisk other(policy::file_of(with_stochastic_rounding()));
  const PairedRuns runs(found, "gpt_small", {other.path(), "quartet2", "amp-bf16"},
                        found.thorough() ? 24 : 8, 200);
  const Interval gain = runs.difference(1);
  found.at_most("loss of MS-EDEN beyond stochastic rounding's, upper end of 95 %",
                gain.mean + gain.half, 0.02);
}

}  // namespace e21

const Experiment found::e21{
    "E21",
    "MS-EDEN has half of stochastic rounding's squared error, and no bias. A small GPT ends with "
    "the "
    "same loss within 2 % (Quartet II, arXiv 2601.22813, reports lower losses).",
    e21::run};

}  // namespace halftone::lab
