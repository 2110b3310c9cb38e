// Lesson 21: training. You will learn the whole loop on real images: a dataset and its loader, a
// model, an optimizer with a schedule, evaluation, and weights saved to a file.
#include <iostream>

#include <halftone/core/device.h>
#include <halftone/core/files.h>
#include <halftone/halftone.h>

#include "fashion.h"

namespace ht = halftone;

namespace {

struct Arguments : TrainingFlags {
  std::string optimizer = "adamw", save = "lenet.safetensors", load{};
};

void train(ht::nn::Layer& model, const ht::data::ByteImages& images,
           const ht::data::ByteImages& test_images, const Arguments& arguments) {
  using ht::optim::LrSchedule;
  const ht::Device device = ht::device_named(arguments.device);
  ht::data::DataLoader loader(
      images,
      {.batch_size = arguments.batch, .shuffle = true, .seed = arguments.seed, .device = device});
  const auto optimizer = make_optimizer(arguments.optimizer, model.parameters(), arguments.lr);
  // The rate rises during the first steps, then falls along half a cosine to nearly 0.
  const int64_t steps = arguments.epochs * loader.size(),
                rising = std::min<int64_t>(steps / 10, 100);
  ht::optim::LrScheduler schedule(
      *optimizer, LrSchedule::warm_up(rising, LrSchedule::cosine(steps - rising, 0.01)));
  ht::train::ProgressBar progress(
      {.epochs = arguments.epochs, .steps_per_epoch = loader.size(), .unit = "images"});
  ht::train::RunningMean loss_mean;
  ht::train::TopKAccuracy accuracy;
  for (int64_t epoch = 1; epoch <= arguments.epochs; ++epoch) {
    progress.begin_epoch(), loss_mean.reset(), accuracy.reset();
    for (auto [inputs, labels] : loader) {
      const ht::Tensor logits = model(inputs);
      const ht::Tensor loss = ht::cross_entropy(logits, labels);
      optimizer->zero_grad();
      loss.backward();
      optimizer->step();
      schedule.step();
      loss_mean.update(loss, double(inputs.size(0)));
      accuracy.update(logits, labels);
      progress.step(inputs.size(0), [&](const auto& show) {  // called only if the bar is drawn
        show("loss", loss_mean.value());
        show("accuracy", accuracy.value(), ht::train::Shown::percent);
      });
    }
    model.eval();
    const double test_accuracy = accuracy_of(model, test_images, device);
    model.train();
    char text[80];
    std::snprintf(text, sizeof text, "epoch %ld/%ld  test accuracy %.2f %%", long(epoch),
                  long(arguments.epochs), 100 * test_accuracy);
    progress.note(text);
  }
}

void run(const Arguments& arguments) {
  using ht::data::Split;
  const auto start = std::chrono::steady_clock::now();
  ht::files::require_replaceable("--save", arguments.save);  // fails now instead of after the
                                                             // training
  const ht::data::ByteImages images = fashion_images(Split::train, arguments.data, arguments.limit),
                             test_images =
                                 fashion_images(Split::test, arguments.data, arguments.limit);
  ht::manual_seed(arguments.seed);
  ht::nn::models::LeNet model;
  if (!arguments.load.empty()) ht::nn::load(model, arguments.load);
  const ht::Device device = ht::device_named(arguments.device);
  model.to(device);
  std::cout << "LeNet, " << model.parameter_count() << " parameters; " << images.size()
            << " training and " << test_images.size() << " test images; " << arguments.optimizer
            << ", f32, " << ht::cpu_threads() << " threads" << std::endl;
  if (arguments.epochs > 0) train(model, images, test_images, arguments);

  model.eval();
  const double accuracy = accuracy_of(model, test_images, device);
  ht::nn::save(model, arguments.save);
  ht::nn::models::LeNet restored;
  ht::nn::load(restored, arguments.save);
  restored.to(device);
  if (accuracy_of(restored, test_images, device) != accuracy)
    ht::fail<ht::FormatError>("--save", "the weights read back from ", arguments.save,
                              " give another accuracy. Check the disk.");
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::printf("\nweights in %s, reloaded and verified\ntest accuracy %.2f %%\ntime %.1f s\n\n",
              arguments.save.c_str(), 100 * accuracy, seconds.count());
  std::cout << ht::memory_report(device) << std::flush;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  arguments.epochs = 2, arguments.limit = 12000;  // --epochs 5 --limit 60000 takes minutes
  Program program("Trains a small convolutional network on Fashion-MNIST.");
  program.training(arguments);
  program.flag("--optimizer", arguments.optimizer).one_of(optimizer_names());
  program.flag("--save", arguments.save, "where the weights go");
  program.flag("--load", arguments.load, "weights to start from").existing_file();
  return program.run(argc, argv, [&] { run(arguments); });
}

// Conclusion. A training loop is a loader, a forward pass, a loss, a backward pass, an update and a
// schedule. Everything else here is evaluation and files. Lesson 22 hands the loop to a Trainer.
//
// Exercises
// 1 (predict). Leave out optimizer->zero_grad(). What happens to the loss in the first epoch?
// 2 (implement). Train under a strategy: three lines change, see amp/training.h.
// 3 (implement). Save the weights with the best test accuracy, not the last ones.
