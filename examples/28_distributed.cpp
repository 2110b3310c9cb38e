// Lesson 28: one training on several processes. You will see that the final weights do not depend
// on the number of processes, to the bit, if each has one thread:
//
//   export OMP_NUM_THREADS=1
//   28_distributed --hash
//   mpirun -n 2 --bind-to none 28_distributed --hash
//   mpirun -n 4 --bind-to none 28_distributed --hash
//
// A step has --batches-per-step batches, whichever process computes them. With four of them, each
// of four processes computes one, or one process computes all four. Their gradients are added in
// the order of the batches, and each process stores its share of the optimizer's state. The program
// only sets the number of batches per step.
#include <iostream>

#include <zlib.h>

#include <halftone/halftone.h>

#include "program.h"

namespace ht = halftone;

namespace {

struct Arguments {
  std::string strategy = "o2-bf16", wire = "own";
  int64_t batches_per_step = 4, batches = 40, epochs = 1, seed = 0;
  bool hash = false;
};

/// Hashes the whole state of the training: weights, optimizer, master weights, loss scale.
uint32_t hash_of(const ht::optim::NamedTensors& state) {
  uLong sum = crc32(0, nullptr, 0);
  for (const auto& [name, x] : state) {
    const ht::Tensor copy = x.clone();
    sum = crc32(sum, reinterpret_cast<const Bytef*>(name.data()), uInt(name.size()));
    sum = crc32(sum, reinterpret_cast<const Bytef*>(copy.raw_data()), uInt(copy.bytes()));
  }
  return uint32_t(sum);
}

int64_t kept_bytes() {
  const ht::MemoryReport report = ht::memory_report();
  int64_t sum = 0;
  for (const auto use : {ht::MemoryUse::parameter, ht::MemoryUse::master_weight,
                         ht::MemoryUse::compensation, ht::MemoryUse::optimizer_state})
    sum += report.now_of(use);
  return sum;
}

void train(const Arguments& a) {
  ht::manual_seed(uint64_t(a.seed));
  ht::nn::models::LeNet model;
  ht::optim::AdamW adamw(model.parameters(), {.lr = 2e-3, .weight_decay = 0.05});
  const ht::data::DataLoader images(ht::data::fashion_mnist(),
                                    {.batch_size = 32, .shuffle = true, .seed = uint64_t(a.seed)}),
      test_images(ht::data::fashion_mnist({.split = ht::data::Split::test}), {.batch_size = 500});
  ht::distributed::Options distributed;  // the wire format of gradients
  if (a.wire != "own") distributed.wire = ht::distributed::WireFormat::named(a.wire);

  ht::train::Trainer trainer(ht::train::classification(model), adamw,
                             {.precision = a.strategy,
                              .max_epochs = a.epochs,
                              .accumulate_batches = a.batches_per_step,
                              .distributed = distributed,
                              .limit_train_batches = a.batches});
  const ht::train::FitResult result = trainer.fit(images, test_images);

  // All processes reach this line, with the same weights and their shares of the optimizer's state.
  // Rank 0 gets the whole state and prints.
  const ht::optim::NamedTensors state = trainer.training().state_dict();
  if (trainer.rank() != 0) return;
  std::cout << trainer.ranks() << (trainer.ranks() == 1 ? " process" : " processes")
            << "; test accuracy "
            << ht::train::shown_text(result.metrics.at("val/top1"), ht::train::Shown::percent)
            << '\n';
  if (trainer.ranks() > 1) std::cout << "rank 0 " << ht::world().traffic() << '\n';
  std::cout << "rank 0 keeps " << double(kept_bytes()) / double(model.parameter_count())
            << " bytes per parameter: weight, master, optimizer state\n";
  if (a.hash) std::cout << "hash " << std::hex << hash_of(state) << '\n';
}

}  // namespace

int main(int argc, char** argv) {
  Arguments a;
  Program program("Trains LeNet on Fashion-MNIST on as many processes as mpirun starts.");
  const auto wires = ht::distributed::WireFormat::names();
  program.flag("--strategy", a.strategy, "of amp/policy.h");
  program.flag("--wire", a.wire, "the format of gradients between processes; own: their dtype")
      .one_of({wires.begin(), wires.end()});
  program.flag("--batches-per-step", a.batches_per_step, "over all processes").positive();
  program.flag("--batches", a.batches, "of an epoch; 0: all").not_negative();
  program.flag("--epochs", a.epochs).within(1, 1000);
  program.flag("--seed", a.seed, "seed of weights and of the order of the images").not_negative();
  program.flag("--hash", a.hash, "prints a checksum of the training at its end");
  return program.run(argc, argv, [&] { train(a); });
}

// Conclusion. The sum of a step's gradients has one order, whatever the number of processes. So the
// weights depend on the batches of a step alone, and a hash shows it.
//
// Exercises
// 1 (predict). One process with --batches-per-step 4, and four processes: which lines of the output
//   differ?
// 2 (predict). --wire bf16: do the hashes of one and of two processes still agree?
// 3 (design). Two machines have different CPUs. Which sums may differ, and what would you compare
//   in place of hashes? docs/same_bits.md has the list.
