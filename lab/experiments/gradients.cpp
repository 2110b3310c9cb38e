// E7. An MLP of 64-128-64-10 learns ten clusters of random vectors from a loss multiplied by a
// small weight, as for an auxiliary loss: its gradients are smaller by that factor. A probe
// observes an f32 run. The histograms of its gradients predict what f16 will lose, and which loss
// scale is enough.
#include <algorithm>
#include <cmath>

#include <halftone/lab/commands/commands.h>
#include <halftone/lab/experiments/experiments.h>
#include <halftone/lab/gate.h>
#include <halftone/lab/table.h>
#include <halftone/lab/trial.h>
#include <halftone/lab/workload.h>
#include <halftone/nn/module.h>

namespace halftone::lab {
namespace e07 {

/// Returns the power of two that lifts all but a thousandth of every gradient above the range that
/// f16 rounds to 0. The room of f16 above the largest gradient limits it.
int sufficient_lift(const SmallGradientRun& run) {
  int lift = -100, room = 100;
  for (const Survey& survey : run.gradients) {
    if (!survey.sufficient_lift(formats::f16)) continue;
    lift = std::max(lift, *survey.sufficient_lift(formats::f16));
    room = std::min(room, 15 - std::ilogb(survey.sums.largest));
  }
  return std::min(lift, room);
}

struct Accuracies {
  double weight, f32_run, bf16_run, plain, scaled;
};

void run(Findings& found) {
  std::vector<Accuracies> seen;
  Table table({"loss times", "f32", "bf16", "f16", "f16, scaled", "by", "f16, dynamic",
               "of gradients lost in f16", "predicted"});
  for (const double weight : {1.0, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6}) {
    const SmallGradientRun f32_run = train_small_gradients(policy_of("f32", "fp32", ""), weight),
                           bf16_run =
                               train_small_gradients(policy_of("bf16", "amp-bf16", ""), weight),
                           plain = train_small_gradients(f16_with(R"("none")"), weight),
                           dynamic = train_small_gradients(f16_with(R"({"init": 65536})"), weight);
    const int lift = sufficient_lift(f32_run);
    const SmallGradientRun scaled =
        train_small_gradients(f16_with(number(std::ldexp(1.0, lift), 20)), weight);
    // The probe sees f16 tensors after rounding, so underflow shows as zeros that f32 did not have.
    const auto zeros = [](const SmallGradientRun& r) {
      return r.output_gradients.sums.zeros / r.output_gradients.sums.count;
    };
    const double lost = (zeros(plain) - zeros(f32_run)) / (1 - zeros(f32_run)),
                 predicted = f32_run.output_gradients.would_underflow(formats::f16);
    table.row({number(weight), percent(f32_run.accuracy), percent(bf16_run.accuracy),
               percent(plain.accuracy), percent(scaled.accuracy), "2^" + std::to_string(lift),
               percent(dynamic.accuracy), percent(lost), percent(predicted)});
    seen.push_back({weight, f32_run.accuracy, bf16_run.accuracy, plain.accuracy, scaled.accuracy});
  }
  found.out() << "accuracy after 300 steps:\n" << table;
  for (const Accuracies& a : seen) {
    const std::string at = "loss times " + number(a.weight) + ", accuracy of ";
    found.within(at + "bf16 less f32's", a.bf16_run - a.f32_run, -0.01, 0.01);
    found.within(at + "f16, scaled, less f32's", a.scaled - a.f32_run, -0.01, 0.01);
    // With ten classes, 0.1 is chance.
    // The accuracy is at chance if everything is lost, and close to it if a hundredth is left.
    if (a.weight <= 1e-5) found.at_most(at + "f16, unscaled", a.plain, a.weight < 1e-5 ? 0.2 : 0.5);
  }
}

}  // namespace e07

const Experiment found::e7{
    "E7",
    "f16 needs a loss scale if gradients are small, and the histogram of an f32 run gives the "
    "scale; bf16 needs none (Micikevicius et al. 2018, arXiv 1710.03740, section 3.2).",
    e07::run};

// E9. The residual MLP (lab/workload.h) under MXFP8 for everything that its operations
// read, weights of normalizations included. These weights are near 1: in a block whose largest
// number is in (0.875, 1), OCP's rule takes the scale 2^-9. The numbers then become (448, 512) in
// e4m3, whose largest number is 448. The effect on gradients is also measured. Spikes of the loss,
// which were published from runs of days, are not part of the check.

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
    const Trial trial([seed] { return decaying(seed); }, amp::Policy::named("fp32"),
                      {.batches = 8, .warm_up = 600, .seed = seed});
    for (const auto& [name, rule] :
         {std::pair{"floor", ScaleRule::floor}, {"rceil", ScaleRule::rceil}}) {
      Counts counts;
      for (const auto& [parameter, x] : trial.weights())
        if (parameter.ends_with("norm.weight")) count(x, rule, counts);
      const Measurement measured = trial.measure(policy_of(name, "fp32", policy_text(name)));
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

// E10. Prints the table of `halftone-lab formats` and checks it against numbers derived without
// this library.

namespace e10 {

void run(Findings& found) {
  run_formats(
      {.names = {"bf16", "f16", "e4m3", "e5m2", "mxfp8", "mxfp6", "mxfp6-e3m2", "mxfp4", "nvfp4"}});
  found.exactly("exit code of formats --check", run_formats({.check = true}), 0);
}

}  // namespace e10

const Experiment found::e10{
    "E10",
    "The signal-to-noise ratio of a format is a property that can be certified: every number of "
    "every format up to 16 bits, and decibels of nine formats on Gaussian numbers.",
    e10::run};

// E22. Gradients rounded stochastically are unbiased, but noisy. FP4 All the Way (arXiv 2505.19115)
// derives that training becomes less effective if the norm of the gradient is below sqrt(3) times
// the norm of the rounding noise, and advises to switch to wider gradients there. Here gradients
// are rounded to e4m3 under a constant loss scale, so the noise keeps its size while gradients
// become smaller. At some steps and loss scales the experiment measures the ratio, and how much
// lower the loss is 200 steps later if gradients are not rounded from that step on.

namespace e22 {

constexpr const char* workload = "residual_mlp";
constexpr int64_t after_switch = 200, batches = 24;

/// Gradients rounded to e4m3 in the first `steps` steps.
amp::Policy rounded_for(int64_t steps, int64_t loss_scale) {
  return policy_of("rounded", "fp32",
                   R"(
    "quantizers": {"q": {"format": "e4m3", "rounding": "stochastic"}},
    "rules": [{"match": {"op": "linear", "steps": [0, )" +
                       std::to_string(steps) + R"(]}, "grad_output": "q"}],
    "loss_scale": )" + std::to_string(loss_scale));
}

/// Returns the gradients of all parameters for a batch, one after the other.
std::vector<double> gradients_of(const Workload& work, amp::Training& training,
                                 const data::Batch& batch) {
  training.zero_grad();
  training.backward(loss_of(work, training, batch));
  std::vector<double> all;
  const Tensor scale = training.last_pass().scale;
  const double factor = scale.defined() ? 1 / scale.item() : 1;
  for (const Tensor& parameter : work.model->parameters()) {
    const std::vector<float> g = parameter.grad().to_vector<float>();
    for (const float x : g) all.push_back(factor * x);
  }
  return all;
}

/// Returns the norm of the mean gradient of some batches over the root mean square of the rounding
/// noise of one of them.
double gradient_to_noise(const nn::Module& model, int64_t loss_scale, uint64_t seed) {
  const Workload work = make_workload(workload, seed);
  nn::load_state_dict(*work.model, nn::state_dict(model));
  const std::unique_ptr<optim::Optimizer> optimizer = optimizer_of(work);
  const auto pass = [&](const amp::Policy& strategy) {
    amp::Training training = amp::apply(strategy, *work.model, *optimizer);
    std::vector<std::vector<double>> all;
    data::DataLoader loader = work.train();
    for (const data::Batch& batch : loader) {
      all.push_back(gradients_of(work, training, batch));
      if (std::ssize(all) == batches) break;
    }
    return all;
  };
  const auto exact_ones = pass(amp::Policy::named("fp32")),
             noisy = pass(rounded_for(1, loss_scale));
  double of_mean = 0, noise = 0;
  for (std::size_t i = 0; i < exact_ones[0].size(); ++i) {
    double sum = 0;
    for (std::size_t b = 0; b < exact_ones.size(); ++b) {
      sum += exact_ones[b][i];
      const double error = noisy[b][i] - exact_ones[b][i];
      noise += error * error / double(batches);
    }
    of_mean += sum * sum / double(batches * batches);
  }
  return std::sqrt(of_mean / noise);
}

struct Point {
  double ratio = 0, loss = 0;  // at the switch; mean loss of the last 50 steps
};

Point train(int64_t rounded_steps, int64_t measure_at, int64_t steps, int64_t loss_scale,
            uint64_t seed) {
  Workload work = make_workload(workload, seed);
  const std::unique_ptr<optim::Optimizer> optimizer = optimizer_of(work);
  amp::Training training(rounded_for(rounded_steps, loss_scale), *work.model, *optimizer);
  Point point;
  train_steps(work, training, steps, [&](int64_t step, const Tensor& loss) {
    if (step + 1 == measure_at) point.ratio = gradient_to_noise(*work.model, loss_scale, seed);
    if (step >= steps - 50) point.loss += loss.item() / 50;
  });
  return point;
}

void run(Findings& found) {
  const uint64_t seeds = found.thorough() ? 8 : 3;
  Table table({"step", "loss scale", "gradient / noise", "loss 200 steps later",
               "gradients in f32 from there", "gain, 95 %"});
  std::vector<double> ratios, gains;
  for (const int64_t step : {80, 320, 1280})
    for (const int64_t loss_scale : {4, 16, 64, 256, 1024}) {
      std::vector<double> gain;
      double ratio = 0, stays = 0, switches = 0;
      for (uint64_t seed = 0; seed < seeds; ++seed) {
        const int64_t steps = step + after_switch;
        const Point rounded = train(steps, step, steps, loss_scale, seed),
                    wide = train(step, 0, steps, loss_scale, seed);
        gain.push_back(1 - wide.loss / rounded.loss);
        ratio += rounded.ratio / double(seeds), stays += rounded.loss / double(seeds);
        switches += wide.loss / double(seeds);
      }
      const Interval interval = interval_of(gain);
      table.row({std::to_string(step), std::to_string(loss_scale), fixed(ratio, 2), number(stays),
                 number(switches), percent(interval.mean) + " +- " + percent(interval.half)});
      ratios.push_back(-ratio), gains.push_back(interval.mean);
    }
  found.out() << workload << ", means over " << seeds << " seeds; sqrt(3) = 1.73\n" << table;
  for (std::size_t i = 0; i < gains.size(); ++i)
    if (-ratios[i] < std::sqrt(3.0))
      found.at_least("gain at the ratio " + fixed(-ratios[i], 2), gains[i], 0.1);
    else if (-ratios[i] > 3 * std::sqrt(3.0))
      found.at_most("gain at the ratio " + fixed(-ratios[i], 2), gains[i], 0.05);
  found.at_least("rank correlation of the gain with a small ratio", spearman(ratios, gains), 0.8);
}

}  // namespace e22

const Experiment found::e22{
    "E22",
    "The smaller the ratio of the gradient to its rounding noise, the more a training gains from "
    "gradients that are not rounded (arXiv 2505.19115 puts the line at sqrt(3)).",
    e22::run};

}  // namespace halftone::lab
