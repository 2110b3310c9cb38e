// Two trainings at once, in two threads of one process: each ends with the bits of the same
// training alone. In the preset `tsan` races between them would be found.
#include "trainer_cases.h"

#include <thread>

#include <halftone/train/callbacks.h>

#include "../threads.h"

namespace halftone::test::two_threads_test {
namespace {

optim::NamedTensors trained(const std::string& precision, const std::filesystem::path& directory) {
  TrainerRun run({.precision = precision,
                  .max_steps = 9,
                  .clip_norm = 1,
                  .directory = directory,
                  .checkpoints = {.every_steps = 3},
                  .callbacks = {std::make_shared<train::WeightAverage>()}});
  data::DataLoader loader =
      trainer_loader({.batch_size = 16, .shuffle = true, .workers = 2, .prefetch = 2, .seed = 3});
  run.trainer.fit(loader, loader);
  optim::NamedTensors state;
  for (const auto& [name, x] : run.trainer.training().state_dict()) state[name] = x.clone();
  return state;
}

TEST_CASE("two trainings in two threads end as each would alone") {
  const TemporaryDirectory directory;
  const std::vector<std::string> precisions{"amp-fp16", "split-bf16", "o2-bf16", "bf16-mixed"};
  for (std::size_t i = 0; i < precisions.size(); i += 2) {
    std::vector<optim::NamedTensors> alone(2), together(2);
    const auto folder = [&](const char* kind, std::size_t k) {
      return directory / (kind + std::to_string(i + k));
    };
    for (std::size_t k : {0u, 1u}) alone[k] = trained(precisions[i + k], folder("alone", k));
    {
      std::vector<std::jthread> threads;
      for (std::size_t k : {0u, 1u})
        threads.emplace_back(
            [&, k] { together[k] = trained(precisions[i + k], folder("both", k)); });
    }
    for (std::size_t k : {0u, 1u}) CHECK(same_state(alone[k], together[k]));
  }
}

}  // namespace
}  // namespace halftone::test::two_threads_test
