// Lesson 17: a policy in a file. You will write one, see its effect on each tensor of a model
// before the training, train under it and under fp32 and bf16, and write it out from the strategy
// again, letter by letter the same.
#include <omp.h>

#include <cstdio>
#include <iostream>

#include <halftone/halftone.h>
#include <halftone/amp/resolved.h>

#include "program.h"

namespace ht = halftone;

namespace {

/// FP8 training in a few lines: e4m3 forward, e5m2 for gradients, with per-tensor scales from the
/// tensor itself; the last layer stays in f32.
constexpr const char* text = R"({
  "halftone_policy": 1,
  "name": "my-fp8",
  "about": "e4m3 forward, e5m2 backward, but for the last layer",
  "extends": "fp32",
  "quantizers": {
    "forward": "fp8_tensor",
    "backward": {"like": "forward", "format": "e5m2"}
  },
  "rules": [
    {"name": "hidden layers",
     "match": {"op": "linear", "path": "*", "except": "[-1]"},
     "input": "forward", "weight": "forward", "grad_output": "backward"}
  ]
})";

/// Prints the losses of a small regression at a few steps.
void train(const ht::amp::Policy& strategy, int64_t steps, bool shows) {
  ht::manual_seed(0);
  ht::nn::Sequential model = ht::nn::models::mlp({16, 64, 64, 4});
  ht::nn::Sequential teacher = ht::nn::models::mlp({16, 32, 4});
  ht::optim::AdamW adamw(model.parameters(), {.lr = 3e-3});
  ht::amp::Training training(strategy, model, adamw);
  std::printf("%-10s", strategy.name.c_str());
  for (int64_t step = 0; step < steps; ++step) {
    const ht::Tensor x = ht::randn({64, 16});
    ht::Tensor wanted;
    {
      const ht::NoGrad no_grad;
      wanted = teacher(x);
    }
    training.zero_grad();
    const ht::Tensor y = training.forward([&](const ht::Tensor& in) { return model(in); }, x);
    const ht::Tensor loss = ht::mse(y, wanted);
    training.backward(loss);
    training.step();
    if ((step + 1) % (steps / 5) == 0) std::printf("  %8.6f", loss.item());
  }
  std::printf("\n");
  if (shows)
    std::cout << '\n' << ht::policy::resolved_table(ht::policy::session_of(training)) << '\n';
}

void run(int64_t steps) {
  omp_set_num_threads(1);  // the tensors are small
  const ht::amp::Policy mine = ht::policy::read_text(text, "my-fp8.json");
  std::cout << "loss of a network that learns the outputs of another one, at five steps:\n";
  for (const char* name : {"fp32", "full-bf16"}) train(ht::amp::Policy::named(name), steps, false);
  train(mine, steps, true);
  const ht::amp::Policy file = mine;
  const bool same = ht::policy::write(ht::policy::read_text(ht::policy::write(file), "again")) ==
                    ht::policy::write(file);
  std::cout << "written out and read again it is " << (same ? "the same" : "ANOTHER") << ", hash "
            << ht::policy::hash(file) << '\n';
}

}  // namespace

int main(int argc, char** argv) {
  int64_t steps = 300;
  Program program("Writes a policy, shows what it does, and trains under it.");
  program.flag("--steps", steps, "of each training").within(5, 100000);
  return program.run(argc, argv, [&] { run(steps); });
}

// Conclusion. A policy is data: formats, scales and rules by place and role. The resolved table
// says what each tensor of a model gets, and a hash names the policy in the records of a run.
//
// Exercises
// 1 (predict). Replace "except": "[-1]" by "except": "[0]". Which line of the table changes, and
//   which product does no rule reach?
// 2 (implement). Give "backward" stochastic rounding, and gradients a scale from history. The
//   grammar is in docs/policy_files.md.
// 3 (design). Write the policy of a paper that you know. Which of its words have no place in the
//   file?
