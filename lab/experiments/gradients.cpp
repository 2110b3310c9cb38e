// E22. Gradients rounded stochastically are unbiased, but noisy. FP4 All the Way (arXiv 2505.19115)
// derives that training becomes less effective if the norm of the gradient is below sqrt(3) times
// the norm of the rounding noise, and advises to switch to wider gradients there. Here gradients
// are rounded to e4m3 under a constant loss scale, so the noise keeps its size while gradients
// become smaller. At some steps and loss scales the experiment measures the ratio, and how much
// lower the loss is 200 steps later if gradients are not rounded from that step on.
#include <cmath>

#include <halftone/lab/experiments/experiments.h>
#include <halftone/lab/setting.h>
#include <halftone/lab/statistics.h>
#include <halftone/lab/table.h>
#include <halftone/lab/workload.h>
#include <halftone/nn/state_dict.h>

namespace halftone::lab {
namespace e22 {

constexpr const char* workload = "residual_mlp";
constexpr int64_t after_switch = 200, batches = 24;

/// Gradients rounded to e4m3 in the first `steps` steps.
amp::Strategy rounded_for(int64_t steps, int64_t loss_scale) {
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
  const auto pass = [&](const amp::Strategy& strategy) {
    amp::Training training = amp::apply(strategy, *work.model, *optimizer);
    std::vector<std::vector<double>> all;
    data::DataLoader loader = work.train();
    for (const data::Batch& batch : loader) {
      all.push_back(gradients_of(work, training, batch));
      if (std::ssize(all) == batches) break;
    }
    return all;
  };
  const auto exact_ones = pass(amp::Strategy::named("fp32")),
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
