// E17. Everything that an MLP of 32-64-8 passes on or stores is rounded stochastically to bf16:
// results, gradients, weights, momentum. The training is stopped and resumed, and run on other
// kernels; tests run it under every cap of instruction sets. (tests/train/kill_resume.sh kills a
// real process.)
#include <filesystem>

#include <unistd.h>

#include <halftone/core/backend.h>
#include <halftone/lab/experiments/experiments.h>
#include <halftone/lab/setting.h>
#include <halftone/lab/table.h>

namespace halftone::lab {
namespace e17 {

constexpr int64_t steps = 200;

/// These hashes are the same on every machine: no result depends on a compiler, a CPU or a number
/// of threads. Rate and momentum are powers of two, so that a fused multiply-add changes nothing.
constexpr std::string_view decisions_everywhere = "0891e5ed11dad8d4",
                           weights_everywhere = "bd25ba1bbfec4b81";

/// Sums of products run in order of k, so that they do not depend on the kernels.
amp::Strategy everywhere() {
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
  explicit Run(const amp::Strategy& policy, uint64_t seed = 1)
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

std::string whole(const amp::Strategy& policy) {
  Run run(policy);
  run.train(steps);
  return run.hash();
}

std::string weights() {
  Run run(everywhere());
  run.train(steps);
  return hash_of(run.model.parameters());
}

std::string resumed(const amp::Strategy& policy) {
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
  const amp::Strategy policy = everywhere(), native = amp::Strategy::named("full-bf16-sr");
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
