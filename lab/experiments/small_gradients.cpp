// Ten clusters that overlap slightly. AdamW's eps is so small that the step size does not depend on
// the size of the gradients.
#include <halftone/lab/experiments/small_gradients.h>

#include <functional>
#include <numeric>

#include <halftone/lab/setting.h>
#include <halftone/policy/probe.h>

namespace halftone::lab {

namespace {
constexpr int64_t steps = 300, batch_size = 128, inputs = 64, classes = 10;

/// Centers, and vectors around them. Neighbors overlap slightly.
struct Clusters {
  Tensor centres = randn({classes, inputs});
  std::pair<Tensor, Tensor> draw(int64_t count) const {
    const Tensor labels = randint(0, classes, {count});
    return {index_select(centres, 0, labels) + randn({count, inputs}) * 2, labels};
  }
};
}  // namespace

SmallGradientRun train_small_gradients(const amp::Strategy& strategy, double loss_weight) {
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
  SmallGradientRun run;
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

amp::Strategy f16_with(const std::string& loss_scale) {
  return policy_of("f16", "amp-fp16", R"("loss_scale": )" + loss_scale);
}

}  // namespace halftone::lab
