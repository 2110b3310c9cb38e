// E7. An MLP of 64-128-64-10 learns ten clusters of random vectors from a loss that is multiplied
// by a small weight, as an auxiliary one is: its gradients are that much smaller. An f32 run is
// watched; from the histograms of its gradients follows what f16 will lose, and which loss scale
// will mend it.
#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include <halftone/lab/experiments/experiments.h>
#include <halftone/lab/setting.h>
#include <halftone/lab/table.h>
#include <halftone/policy/probe.h>

namespace halftone::lab {
namespace {

constexpr int64_t steps = 300, batch_size = 128, inputs = 64, classes = 10;

/// Centres, and vectors around them. Neighbours overlap a little.
struct Clusters {
  Tensor centres = randn({classes, inputs});
  std::pair<Tensor, Tensor> draw(int64_t count) const {
    const Tensor labels = randint(0, classes, {count});
    return {index_select(centres, 0, labels) + randn({count, inputs}) * 2, labels};
  }
};

struct Run {
  double accuracy = 0, untrained = 0;
  Survey output_gradients{};        // of the three layers together
  std::vector<Survey> gradients{};  // one for each layer and each kind
};

Run train(const amp::Strategy& strategy, double loss_weight) {
  manual_seed(7);
  nn::Sequential model = nn::models::mlp({inputs, 128, 64, classes});
  const Clusters clusters;
  const auto [test, test_labels] = clusters.draw(4096);
  optim::AdamW adamw(model.parameters(), {.lr = 1e-3, .eps = 1e-15});
  amp::Training training(strategy, model, adamw);
  const auto accuracy = [&, &x = test, &labels = test_labels] {
    const NoGrad no_grad;
    const std::vector<double> said = argmax(training.forward(model, x), 1).to_vector<double>(),
                              right = labels.to_vector<double>();
    return std::inner_product(said.begin(), said.end(), right.begin(), 0.0, std::plus<>(),
                              std::equal_to<>()) /
           double(right.size());
  };
  Run run;
  run.untrained = accuracy();
  policy::Probe probe(training, {.every = 10,
                                 .roles = {policy::Role::grad_output, policy::Role::grad_input,
                                           policy::Role::grad_weight},
                                 .updates = false});
  for (int64_t step = 0; step < steps; ++step) {
    const auto [x, labels] = clusters.draw(batch_size);
    training.zero_grad();
    training.backward(cross_entropy(training.forward(model, x), labels) * loss_weight);
    training.step();
  }
  for (const policy::ProbeRow& row : probe.rows()) {
    if (row.site.find("/linear.") == std::string::npos) continue;
    if (row.role == policy::Role::grad_output) run.output_gradients.merge(row.survey);
    run.gradients.push_back(row.survey);
  }
  run.accuracy = accuracy();
  return run;
}

/// The power of two that lifts all but a thousandth of every gradient out of what f16 rounds to 0,
/// as far as f16 has room above the largest of all.
int sufficient_lift(const Run& run) {
  int lift = -100, room = 100;
  for (const Survey& survey : run.gradients) {
    if (!survey.sufficient_lift(formats::f16)) continue;
    lift = std::max(lift, *survey.sufficient_lift(formats::f16));
    room = std::min(room, 15 - std::ilogb(survey.sums.largest));
  }
  return std::min(lift, room);
}

amp::Strategy f16_with(const std::string& loss_scale) {
  return policy_of("f16", "amp-fp16", R"("loss_scale": )" + loss_scale);
}

struct Accuracies {
  double weight, f32_run, bf16_run, plain, scaled;
};

void run(Findings& found) {
  std::vector<Accuracies> seen;
  Table table({"loss times", "f32", "bf16", "f16", "f16, scaled", "by", "f16, dynamic",
               "of gradients lost in f16", "predicted"});
  for (const double weight : {1.0, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6}) {
    const Run f32_run = train(policy_of("f32", "fp32", ""), weight),
              bf16_run = train(policy_of("bf16", "amp-bf16", ""), weight),
              plain = train(f16_with(R"("none")"), weight),
              dynamic = train(f16_with(R"({"init": 65536})"), weight);
    const int lift = sufficient_lift(f32_run);
    const Run scaled = train(f16_with(number(std::ldexp(1.0, lift), 20)), weight);
    // What the probe sees of a tensor in f16 is what is left of it: zeros that f32 did not have.
    const auto zeros = [](const Run& r) {
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
    // Ten classes: 0.1 is chance.
    // At chance where everything is lost; close to it where a hundredth is left.
    if (a.weight <= 1e-5) found.at_most(at + "f16, unscaled", a.plain, a.weight < 1e-5 ? 0.2 : 0.5);
  }
}

}  // namespace

const Experiment found::e7{
    "E7",
    "f16 needs a loss scale where gradients are small, and the histogram of an f32 run says which: "
    "bf16 needs none (Micikevicius et al. 2018, arXiv 1710.03740, section 3.2).",
    run};

}  // namespace halftone::lab
