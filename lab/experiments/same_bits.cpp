// E1. Trains an MLP of 64-128-10 without biases (their gradients are sums, which o2 rounds twice)
// for 500 steps on random data, and compares hashes of the f32 weights.
#include <cmath>
#include <filesystem>

#include <unistd.h>

#include <halftone/core/backend.h>
#include <halftone/lab/experiments/experiments.h>
#include <halftone/lab/table.h>
#include <halftone/lab/trial.h>
#include <halftone/lab/workload.h>
#include <halftone/nn/module.h>
#include <halftone/train/task.h>

namespace halftone::lab {
namespace e01 {

/// Trains and returns the hash of the f32 weights.
template <class Optimizer, class Options>
std::string trained(const amp::Policy& strategy, const Options& options) {
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
  const amp::Policy o2 = amp::Policy::named("o2-bf16"), amp = amp::Policy::named("amp-bf16"),
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

// E13. gpt_tiny (lab/workload.h) after 200 steps in f32 makes its predictions twice: with
// products summed in one pass, and with sums restarted every 32 terms. Both sums are f32. They
// differ as the kernels of two programs do, for example when one program draws samples while the
// other trains. The bar is not the published one. A logit that differs does so by a spacing of its
// format, which is 8 times as large in bf16. But rounding hides nearly every difference between two
// sums, and hides more of them if the spacing is wider. The product of both effects reaches the
// predictions.

namespace e13 {

constexpr int64_t steps = 200, sequences = 8;

/// The weights of a trained model, and a batch that was not in its training data.
struct Trained {
  optim::NamedTensors weights{};
  data::Batch batch{};
};

Trained trained() {
  const Workload workload = make_workload("gpt_tiny", 13);
  const std::unique_ptr<optim::Optimizer> optimizer = optimizer_of(workload);
  amp::Training training(policy_of("f32", "fp32", ""), *workload.model, *optimizer);
  optim::LrScheduler rates(training.optimizer(), workload.schedule(steps));
  data::DataLoader held = workload.validation();
  train_steps(workload, training, steps, [&](int64_t, const Tensor&) { rates.step(); });
  Trained result;
  for (const auto& [name, x] : nn::state_dict(*workload.model)) result.weights[name] = x.detach();
  const data::Batch all = *held.begin();
  result.batch = {views::slice(all.inputs, 0, 0, sequences),
                  views::slice(all.targets, 0, 0, sequences)};
  return result;
}

/// Returns the logits in f64, [tokens, characters].
Tensor logits(const Trained& at, const std::string& extends, int chunk) {
  const Workload workload = make_workload("gpt_tiny", 13);
  nn::load_state_dict(*workload.model, at.weights);
  optim::Sgd sgd(workload.model->parameters(), {.lr = 0});
  amp::Training training(
      policy_of("order", extends,
                R"("rules": [{"match": {"op": "linear"}, "accumulate": {"format": "f32",
                    "chunk": )" +
                    std::to_string(chunk) + "}}]"),
      *workload.model, sgd);
  const NoGrad no_grad;
  return cast(flatten(train::outputs_of(workload.task, training, at.batch), 0, 1), f64);
}

struct Mismatch {
  double divergence = 0;  // KL divergence, mean over tokens
  double distance = 0;    // root mean square of the difference of logits
  double others = 0;      // share of the logits that differ
};

Mismatch mismatch(const Trained& at, const std::string& extends) {
  const Tensor a = logits(at, extends, 0), b = logits(at, extends, 32), p = log_softmax(a, -1),
               q = log_softmax(b, -1);
  return {.divergence = (sum(exp(p) * (p - q)) / double(a.size(0))).item(),
          .distance = std::sqrt(mean(square(a - b)).item()),
          .others = mean(cast(a != b, f64)).item()};
}

void run(Findings& found) {
  const Trained at = trained();
  Table table({"", "logits that differ", "each by", "KL", "over f16's", "expected"});
  const auto each_by = [](const Mismatch& m) { return m.distance / std::sqrt(m.others); };
  const auto row = [&](const char* what, const std::string& extends, const Mismatch* f16) {
    const Mismatch m = mismatch(at, extends);
    table.row({what, percent(m.others), number(each_by(m), 3), number(m.divergence, 3),
               f16 ? number(m.divergence / f16->divergence, 3) : "",
               f16 ? number(64 * m.others / f16->others, 3) : ""});
    return m;
  };
  row("f32", "fp32", nullptr);
  const Mismatch f16_region = row("f16 in regions", "amp-fp16", nullptr),
                 bf16_region = row("bf16 in regions", "amp-bf16", &f16_region),
                 f16_all = row("f16 everywhere", "o3-fp16", nullptr),
                 bf16_all = row("bf16 everywhere", "full-bf16", &f16_all);
  found.out() << table;
  for (const auto& [where, f16, bf16] :
       {std::tuple{"in regions", f16_region, bf16_region}, {"everywhere", f16_all, bf16_all}}) {
    const std::string place(where);
    const double ratio = bf16.divergence / f16.divergence, share = bf16.others / f16.others;
    found.within(place + ", a logit that differs, bf16 over f16", each_by(bf16) / each_by(f16), 7,
                 9);
    found.at_most(place + ", share that differs, bf16 over f16", share, 0.5);
    found.within(place + ", KL, bf16 over f16", ratio, 4, 40);
    found.within(place + ", of that what spacings and shares say", ratio / (64 * share), 0.6, 1.6);
  }
}

}  // namespace e13

const Experiment found::e13{"E13",
                            "Two programs that sum in different orders predict differently, in "
                            "bf16 more than in f16 (Qi et "
                            "al. 2025, arXiv 2510.26788): not by the square of the spacings, 64, "
                            "for roundings hide more of "
                            "it in bf16.",
                            e13::run};

// E17. Everything that an MLP of 32-64-8 passes on or stores is rounded stochastically to bf16:
// results, gradients, weights, momentum. The training is stopped and resumed, and run on other
// kernels; tests run it under every cap of instruction sets. (tests/train/kill_resume.sh kills a
// real process.)

namespace e17 {

constexpr int64_t steps = 200;

/// These hashes are the same on every machine: no result depends on a compiler, a CPU or a number
/// of threads. Rate and momentum are powers of two, so that a fused multiply-add changes nothing.
constexpr std::string_view decisions_everywhere = "0891e5ed11dad8d4",
                           weights_everywhere = "bd25ba1bbfec4b81";

/// Sums of products run in order of k, so that they do not depend on the kernels.
amp::Policy everywhere() {
  return policy_of("stochastic", "fp32", R"(
    "quantizers": {"sr": {"format": "bf16", "rounding": "stochastic"}},
    "rules": [{"output": "sr", "grad_input": "sr", "grad_weight": "sr"},
              {"match": {"op": "linear"}, "accumulate": {"format": "f32"}}],
    "optimizer": {"parameters": "sr", "states": {"momentum_buffer": "sr"}}, "seed": 17)");
}

struct Run {
  nn::Sequential model;
  optim::Sgd sgd;
  amp::Training training;
  explicit Run(const amp::Policy& policy, uint64_t seed = 1)
      : model((manual_seed(seed), nn::Sequential{nn::Linear(32, 64, {.bias = false}), nn::Relu(),
                                                 nn::Linear(64, 8, {.bias = false})})),
        sgd(model.parameters(), {.lr = 0.25, .momentum = 0.5}),
        training(policy, model, sgd) {}
  /// Batches come from the default generator, whose state is part of the training's state.
  void train(int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const Tensor x = rand({16, 32}) - 0.5, wanted = rand({16, 8});
      training.zero_grad();
      const Tensor y = training.forward(model, x);
      y.backward((y.detach() - wanted) * (1 / 64.0));  // gradient of a mean of squares, without a
                                                       // sum
      training.step();
    }
  }
  std::string hash() const {
    std::vector<Tensor> all;
    for (const auto& [name, x] : training.state_dict()) all.push_back(x);
    return hash_of(all);
  }
};

std::string whole(const amp::Policy& policy) {
  Run run(policy);
  run.train(steps);
  return run.hash();
}

std::string weights() {
  Run run(everywhere());
  run.train(steps);
  return hash_of(run.model.parameters());
}

std::string resumed(const amp::Policy& policy) {
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() / ("halftone-e17-" + std::to_string(getpid()));
  {
    Run run(policy);
    run.train(steps / 2);
    run.training.save(file);
  }
  Run other(policy, 2);  // has different weights and another state of the generator
  other.train(3);
  other.training.load(file);
  std::filesystem::remove(file);
  other.train(steps - steps / 2);
  return other.hash();
}

/// Returns the hash of quantizers' random decisions on numbers of many sizes.
std::string decisions() {
  manual_seed(3);
  const Tensor u = rand({64, 96}) - 0.5, x = u * u * u * 4096;
  std::vector<Tensor> rounded;
  for (const char* name :
       {"bf16", "e4m3", "e5m2", "e2m1", "mxfp8", "mxfp4", "nvfp4", "fp8_block"}) {
    Quantizer quantizer = *quantizer_named(name);
    quantizer.rounding = Rounding::stochastic;
    rounded.push_back(quantize(x, quantizer));
  }
  return hash_of(rounded);
}

void run(Findings& found) {
  Table table({"hash", "cpu", "reference"});
  const auto both = [&](const char* what, auto&& hash) {
    std::string cpu, reference;
    {
      const CpuBackendScope scope("cpu");
      cpu = hash();
    }
    {
      const CpuBackendScope scope("reference");
      reference = hash();
    }
    table.row({what, cpu, reference});
    return std::pair{cpu, reference};
  };
  const amp::Policy policy = everywhere(), native = amp::Policy::named("full-bf16-sr");
  const auto drawn = both("decisions of eight quantizers", decisions);
  const auto trained = both("weights after 200 steps", weights);
  const auto once = both("all of the training's state", [&] { return whole(policy); });
  const auto again =
      both("the same, stopped after 100 and resumed", [&] { return resumed(policy); });
  const auto plain = both("full-bf16-sr, all of its state", [&] { return whole(native); });
  const auto plain_again =
      both("the same, stopped after 100 and resumed", [&] { return resumed(native); });
  found.out() << table;
  found.equal("decisions, cpu", drawn.first, decisions_everywhere);
  found.equal("decisions, reference", drawn.second, decisions_everywhere);
  found.equal("weights, cpu", trained.first, weights_everywhere);
  found.equal("weights, reference", trained.second, weights_everywhere);
  for (const auto& [name, first, second] :
       {std::tuple{"stochastic policy", once, again}, {"full-bf16-sr", plain, plain_again}}) {
    found.equal(std::string(name) + ", resumed, cpu", second.first, first.first);
    found.equal(std::string(name) + ", resumed, reference", second.second, first.second);
  }
}

}  // namespace e17

const Experiment found::e17{
    "E17",
    "Stochastic rounding with random numbers keyed by tensor, step and element is reproducible: a "
    "training that is stopped and resumed has the same bits, and so has one on other kernels.",
    e17::run};

}  // namespace halftone::lab
