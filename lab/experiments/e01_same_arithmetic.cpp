// E1. Trains an MLP of 64-128-10 without biases (their gradients are sums, which o2 rounds twice)
// for 500 steps on random data, and compares hashes of the f32 weights.
#include <halftone/lab/experiments/experiments.h>
#include <halftone/lab/setting.h>
#include <halftone/lab/table.h>

namespace halftone::lab {
namespace e01 {

/// Trains and returns the hash of the f32 weights.
template <class Optimizer, class Options>
std::string trained(const amp::Strategy& strategy, const Options& options) {
  manual_seed(1);
  nn::Sequential model{nn::Linear(64, 128, {.bias = false}), nn::Relu(),
                       nn::Linear(128, 10, {.bias = false})};
  Optimizer optimizer(model.parameters(), options);
  amp::Training training(strategy, model, optimizer);
  for (int step = 0; step < 500; ++step) {
    const Tensor x = randn({32, 64}), labels = randint(0, 10, {32});
    training.zero_grad();
    training.backward(cross_entropy(training.forward(model, x), labels));
    training.step();
  }
  std::vector<Tensor> weights = model.parameters();
  for (std::size_t i = 0; i < weights.size() && training.masters(); ++i)
    weights[i] = training.masters()->weight(i);
  return hash_of(weights);
}

void run(Findings& found) {
  // amp's gradients come from products in f32, o2's are bf16: that is the only difference.
  const amp::Strategy o2 = amp::Strategy::named("o2-bf16"), amp = amp::Strategy::named("amp-bf16"),
                      rounded = policy_of("amp, gradients rounded", "amp-bf16", R"("rules":
                        [{"match": {"op": "linear"}, "grad_weight": "bf16"}])");
  Table table({"f32 weights after 500 steps", "o2-bf16", "amp, gradients rounded", "amp-bf16"});
  const auto compared = [&]<class Optimizer>(const char* name, auto options) {
    const std::string hashes[]{trained<Optimizer>(o2, options),
                               trained<Optimizer>(rounded, options),
                               trained<Optimizer>(amp, options)};
    table.row({name, hashes[0], hashes[1], hashes[2]});
    return std::array{hashes[0], hashes[1], hashes[2]};
  };
  const auto sgd = compared.operator()<optim::Sgd>("SGD, momentum",
                                                   optim::SgdOptions{.lr = 0.05, .momentum = 0.9});
  const auto adamw = compared.operator()<optim::AdamW>("AdamW", optim::AdamWOptions{.lr = 1e-3});
  found.out() << table;
  for (const auto& [name, hashes] : {std::pair{"SGD", sgd}, {"AdamW", adamw}}) {
    found.equal(std::string(name) + ", gradients rounded alike", hashes[1], hashes[0]);
    found.different(std::string(name) + ", gradients as they come", hashes[2], hashes[0]);
  }
}

}  // namespace e01

const Experiment found::e1{
    "E1",
    "f32 masters of bf16 weights (apex's O2) and autocast over f32 weights are the same arithmetic "
    "in different storage: with equally rounded gradients the f32 weights are equal to the bit.",
    e01::run};

}  // namespace halftone::lab
