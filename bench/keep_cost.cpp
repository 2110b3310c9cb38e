// keep_cost [N]: a training that keeps N checkpoints decides after each save which ones to remove.
// This measures the cost of the decision: if none is removed; the first time that one is removed,
// when all that stay are read and verified; and after that.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>

#include <unistd.h>

#include <halftone/core/factory.h>
#include <halftone/core/files.h>
#include <halftone/train/checkpoints.h>

#include "../examples/output.h"

namespace ht = halftone;
namespace fs = std::filesystem;

namespace {
void measure(int64_t count, const fs::path& root) {
  ht::train::Checkpoint checkpoint;
  checkpoint.tensors = {{"model.weight", ht::zeros({64, 64})},
                        {"optimizer.moment", ht::zeros({64, 64})}};
  for (int i = 0; i < 30; ++i)
    checkpoint.state.numbers["number" + std::to_string(i)] = 1.0 / (i + 1);
  int64_t step = 1;
  const auto path = [&](int64_t of_step) { return root / ht::train::checkpoint_name(of_step); };
  ht::train::save_checkpoint(path(step), checkpoint);
  while (step < count) fs::copy(path(1), path(++step), fs::copy_options::recursive);

  ht::train::Keeper keeper(root);
  const auto time = [&](const char* what, int64_t last) {
    checkpoint.state.step = ++step;
    ht::train::save_checkpoint(path(step), checkpoint);
    const auto start = std::chrono::steady_clock::now();
    keeper.keep({.last = last});
    const std::chrono::duration<double, std::milli> taken =
        std::chrono::steady_clock::now() - start;
    std::printf("%-22s %8.1f ms\n", what, taken.count());
  };
  for (int i = 0; i < 3; ++i) time("nothing goes", count + 3);
  time("the first goes", count + 3);
  for (int i = 0; i < 3; ++i) time("another one goes", count + 3);
}
}  // namespace

int main(int argc, char** argv) {
  const int64_t count = argc > 1 ? std::atoll(argv[1]) : 2850;
  const fs::path root = fs::temp_directory_path() / ("keep_cost-" + std::to_string(getpid()));
  try {
    ht::files::make_directories("keep_cost", root);
    measure(std::max<int64_t>(count, 1), root);
  } catch (const ht::Error& error) { std::cerr << error.what() << '\n'; }
  std::error_code ignored;
  fs::remove_all(root, ignored);
  return after_output();
}
