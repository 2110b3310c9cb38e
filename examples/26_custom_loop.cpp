// Lesson 26: lesson 22 without its Trainer. You will see the Trainer's work as a loop that you can
// change: the strategy, the schedule, records, validation, checkpoints and resuming from them. The
// final weights are those of lesson 22, to the bit.
#include <cstdio>

#include <halftone/core/files.h>
#include <halftone/halftone.h>
#include <halftone/train/checkpoint.h>

#include "fashion.h"

namespace ht = halftone;
namespace fs = std::filesystem;

namespace {

struct Arguments {
  std::string strategy = "amp-bf16", directory = "runs/custom";
  int64_t epochs = 3, batches = 40;
};

void train(const Arguments& a) {
  ht::manual_seed(0);
  ht::nn::models::LeNet model;
  ht::optim::AdamW adamw(model.parameters(), {.lr = 2e-3, .weight_decay = 0.05});
  const auto images = ht::data::fashion_mnist(),
             test_images = ht::data::fashion_mnist({.split = ht::data::Split::test});
  ht::data::DataLoader loader(images, {.batch_size = 128, .shuffle = true, .seed = 0});
  const int64_t batches = a.batches > 0 ? std::min(a.batches, loader.size()) : loader.size();

  // The strategy casts the model, keeps master weights, and scales the loss. Make schedules after
  // it.
  auto training = ht::amp::apply(ht::amp::Policy::named(a.strategy), model, adamw);
  ht::optim::LrScheduler schedule(training.optimizer(),
                                  ht::optim::LrSchedule::cosine(a.epochs * batches, 0.01));

  // Resumes from the latest complete checkpoint.
  const fs::path root = fs::path(a.directory) / "checkpoints";
  ht::files::make_directories("--directory", root);
  const ht::train::DirectoryLock lock(a.directory, "--directory");
  ht::train::remove_abandoned(root);
  ht::train::Keeper keeper(root);
  ht::train::CheckpointState at;
  if (const auto found = ht::train::latest_checkpoint(root)) {
    at = ht::train::load_training(found->path, training, &schedule);
    std::printf("resumed after step %ld\n", long(at.step));
  }
  const auto save = [&] {
    const fs::path path = root / ht::train::checkpoint_name(at.step);
    std::error_code ignored;
    if (fs::exists(path, ignored)) return;
    ht::train::save_training(path, training, at, &schedule);
    keeper.keep({.last = 2});
  };

  ht::train::CsvLogger log(fs::path(a.directory) / "metrics.csv");
  ht::train::ProgressBar progress(
      {.epochs = a.epochs, .steps_per_epoch = batches, .unit = "images"});
  ht::train::RunningMean loss_mean;
  while (at.epoch < a.epochs) {
    progress.begin_epoch(at.epoch + 1, at.batches), loss_mean.reset();
    loader.resume(at.epoch, at.batches);
    for (auto [inputs, labels] : loader) {
      if (at.batches == batches) break;
      training.zero_grad();
      const ht::Tensor loss = ht::cross_entropy(training.forward(model, inputs), labels);
      training.backward(loss);
      if (training.step()) schedule.step();  // does not advance if the scaler skipped the step
      ++at.step, ++at.batches;

      loss_mean.update(loss, double(inputs.size(0)));
      progress.step(inputs.size(0), [&](const auto& show) { show("loss", loss_mean.value()); });
      if (at.step % 50 == 0)
        log.log(at.step, {{"train/loss", loss.item()}, {"lr", training.optimizer().lr()}});
      if (at.step % 100 == 0 && at.batches < batches) save();
    }
    ++at.epoch, at.batches = 0;
    double accuracy = 0;
    {
      const ht::train::Evaluation evaluation(model);
      accuracy =
          accuracy_of([&](const ht::Tensor& x) { return training.forward(model, x); }, test_images);
    }
    log.log(at.step, {{"val/top1", accuracy}});
    std::printf("epoch %ld: test accuracy %.2f %%\n", long(at.epoch), 100 * accuracy);
    save();
  }
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  Program program("Trains LeNet on Fashion-MNIST with a loop by hand.");
  program.flag("--strategy", arguments.strategy, "of amp/policy.h");
  program.flag("--directory", arguments.directory);
  program.flag("--epochs", arguments.epochs).within(1, 1000);
  program.flag("--batches", arguments.batches, "of an epoch; 0: all, which takes minutes")
      .not_negative();
  return program.run(argc, argv, [&] { train(arguments); });
}

// Conclusion. The Trainer has no secrets: apply() for the strategy, a schedule that advances only
// after a step, checkpoints between two steps, a loader that resumes within an epoch.
//
// Exercises
// 1 (predict). Advance the schedule also after skipped steps. When do the weights differ from those
//   of lesson 22?
// 2 (implement). Accumulate the gradients of four batches before a step. Where does the division
//   go?
// 3 (implement). Stop at the first loss that is not finite, and say which tensor overflowed
//   (ht::policy::explain_overflow, lesson 18).
