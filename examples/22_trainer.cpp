// Lesson 22: your own training. You will see the output of a Trainer, kill it (Ctrl-C, or kill -9),
// start it again, and see it continue where it was.
#include <iostream>

#include <halftone/halftone.h>

#include "program.h"

namespace ht = halftone;

int main(int argc, char** argv) {
  std::string precision = "bf16-mixed", directory = "runs/fashion";
  int64_t batches = 40;
  Program program("Trains LeNet on Fashion-MNIST with a Trainer.");
  program.flag("--precision", precision, "bf16-mixed, 16-mixed, 32-true, ..., or a strategy");
  program.flag("--directory", directory, "for checkpoints and logs");
  program.flag("--batches", batches, "of an epoch; 0: all, which takes minutes");
  return program.run(argc, argv, [&] {
    ht::manual_seed(0);
    ht::nn::models::LeNet model;
    ht::optim::AdamW adamw(model.parameters(), {.lr = 2e-3, .weight_decay = 0.05});
    const ht::data::DataLoader images(ht::data::fashion_mnist(),
                                      {.batch_size = 128, .shuffle = true, .seed = 0}),
        test_images(ht::data::fashion_mnist({.split = ht::data::Split::test}), {.batch_size = 500});
    ht::train::Trainer trainer(
        ht::train::classification(model), adamw,
        {.precision = precision,
         .max_epochs = 3,
         .schedule = [](int64_t steps) { return ht::optim::LrSchedule::cosine(steps, 0.01); },
         .limit_train_batches = batches,
         .directory = directory,
         .checkpoints = {.every_steps = 100},
         .resume = true,
         .tensorboard = true,
         .callbacks = {std::make_shared<ht::train::EarlyStopping>()}});
    const ht::train::FitResult result = trainer.fit(images, test_images);
    const double accuracy = result.metrics.at("val/top1");
    std::cout << result.reason << "; test accuracy "
              << ht::train::shown_text(accuracy, ht::train::Shown::percent) << '\n';
  });
}

// Conclusion. A Trainer owns the loop, the strategy, checkpoints and logs. A killed training goes
// on with the same bits. Lesson 26 shows its work as a loop.
//
// Exercises
// 1 (predict). Kill it in the middle of an epoch and start it again. Which images does it read
//   first?
// 2 (implement). A callback that stops after a number of minutes: derive from ht::train::Callback.
// 3 (design). Which options would you change for a model that takes a day to train?
