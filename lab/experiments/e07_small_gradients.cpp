// E7. An MLP of 64-128-64-10 learns ten clusters of random vectors from a loss multiplied by a
// small weight, as for an auxiliary loss: its gradients are smaller by that factor. A probe
// observes an f32 run. The histograms of its gradients predict what f16 will lose, and which loss
// scale is enough.
#include <algorithm>
#include <cmath>

#include <halftone/lab/experiments/experiments.h>
#include <halftone/lab/experiments/small_gradients.h>
#include <halftone/lab/setting.h>
#include <halftone/lab/table.h>

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

}  // namespace halftone::lab
