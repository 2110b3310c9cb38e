// Lesson 11: where are the bytes? You will see the memory ledger at each event of one training step
// under three strategies: what forward keeps for backward, when casts appear and disappear, what
// the update needs, and which event has the peak.
#include <cstdio>
#include <string>
#include <vector>

#include <halftone/halftone.h>

#include "output.h"

namespace ht = halftone;
using ht::MemoryUse;

namespace {

/// Uses of the ledger that are shown as one column, and their letter in the bars.
struct Column {
  const char* name;
  char letter;
  std::vector<MemoryUse> uses;
};
const std::vector<Column> columns{
    {"weights", 'w', {MemoryUse::parameter}},
    {"masters", 'm', {MemoryUse::master_weight, MemoryUse::compensation}},
    {"state", 's', {MemoryUse::optimizer_state}},
    {"gradients", 'g', {MemoryUse::gradient, MemoryUse::master_gradient}},
    {"casts", 'c', {MemoryUse::cast_cache}},
    {"activ.", 'a', {MemoryUse::activation}},
};

constexpr int64_t kib = 1024, bytes_per_letter = 256 * kib;

int64_t bytes_in(const ht::MemoryReport& report, const Column& column) {
  int64_t bytes = 0;
  for (const MemoryUse use : column.uses) bytes += report.now_of(use);
  return bytes;
}

/// Prints the present bytes, and the peak of their sum since the last line.
void print_line(const char* event) {
  const ht::MemoryReport report = ht::memory_report();
  std::printf("%-12s", event);
  std::string bar;
  for (const Column& column : columns) {
    const int64_t bytes = bytes_in(report, column);
    std::printf(" %9.1f", double(bytes) / kib);
    bar.append(std::size_t((bytes + bytes_per_letter / 2) / bytes_per_letter), column.letter);
  }
  std::printf(" %9.1f  %s\n", double(report.total_peak) / kib, bar.c_str());
  ht::reset_peak_memory();
}

void one_step(const char* name) {
  ht::manual_seed(0);
  ht::nn::Sequential model = ht::nn::models::mlp({256, 512, 512, 10});
  ht::optim::AdamW adamw(model.parameters(), {.lr = 1e-3});
  ht::amp::Training training = ht::amp::apply(ht::amp::Policy::named(name), model, adamw);
  ht::Tensor x, labels;
  {
    const ht::MemoryScope scope(MemoryUse::input);
    x = ht::randn({512, 256}), labels = ht::randint(0, 10, {512});
  }
  std::printf("\n%-12s", name);
  for (const Column& column : columns) std::printf(" %9s", column.name);
  std::printf(" %9s  one letter: 256 KiB\n", "peak");
  ht::reset_peak_memory();
  print_line("made");
  for (const bool shown : {false, true}) {  // the first step allocates the optimizer's state
    ht::Tensor loss = ht::cross_entropy(training.forward(model, x), labels);
    if (shown) print_line("forward");
    training.backward(loss);
    loss = {};
    if (shown) print_line("backward");
    if (training.scaler().enabled()) training.scaler().unscale(training.optimizer());
    if (shown) print_line("unscale");
    training.step();
    if (shown) print_line("update");
    training.zero_grad();
    print_line(shown ? "zero_grad" : "after a step");
  }
}

}  // namespace

int main() {
  std::printf(
      "An MLP with AdamW, 512 rows of 256 numbers: KiB after each event of its second "
      "step.\n");
  for (const char* strategy : {"fp32", "amp-fp16", "o2-bf16"}) one_step(strategy);
  std::printf(
      "\nforward   leaves activations for backward. In 16 bits they need half, plus a cast of the\n"
      "          inputs; autocast also keeps the casts of the weights.\n"
      "backward  frees both step by step, while it makes gradients: the peak is here.\n"
      "unscale   works in place, if there is a loss scale to divide by.\n"
      "update    also works in place: o2 reads bf16 gradients, writes f32 masters, rounds them.\n"
      "zero_grad returns to the bytes before the step: nothing leaks.\n\n"
      "The peak includes uses without a column: inputs (516 KiB) and the kernels' workspace, "
      "which\n"
      "is large if the CPU has no instructions for a 16-bit format and computes in f32.\n");
  return after_output();
}

// Conclusion. Weights, masters and state are there all the time; casts and activations come with
// forward, gradients with backward. The peak is in backward, and 16 bits save most on activations.
//
// Exercises
// 1 (pencil). Compute the bytes at rest of 1e9 parameters with AdamW under fp32, amp-bf16, o2-bf16
//   and split-bf16.
// 2 (predict). Double the batch. Which columns change? Halve the width of the layers instead.
// 3 (implement). Run the forward pass in ht::checkpoint() and print the lines again. At which event
//   is the peak now?
