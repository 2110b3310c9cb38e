// Lesson 3: training. You will learn the whole loop on real images: a dataset and its loader, a
// model, an optimizer with a schedule, evaluation, and weights that survive the program.
#include <omp.h>

#include <iostream>

#include <halftone/core/files.h>
#include <halftone/halftone.h>

#include "fashion.h"
#include "program.h"

namespace ht = halftone;

namespace {

struct Arguments {
  std::string data, optimizer = "adamw", save = "lenet.safetensors", load, device = "cpu";
  int64_t epochs = 5, batch = 128, limit = 0;
  double lr = 0;  // 0: what suits the optimizer
  uint64_t seed = 0;
  int threads = 0;  // 0: as many as OpenMP likes
};

void add_flags(Program& program, Arguments& to) {
  program.flag("--data", to.data, "directory of the four IDX files; default: the usual places");
  program.flag("--epochs", to.epochs, "passes over the images; 0 only evaluates").within(0, 1000);
  program.flag("--batch", to.batch, "images per step").within(1, 60000);
  program.flag("--lr", to.lr, "highest learning rate; default: by optimizer").positive();
  program.flag("--optimizer", to.optimizer)
      .one_of({"adamw", "adam", "sgd", "rmsprop", "lion", "lamb", "muon"});
  program.flag("--seed", to.seed, "of weights and shuffling");
  program.flag("--threads", to.threads).within(1, 1024);
  program.device(to.device);
  program.flag("--save", to.save, "where the weights go");
  program.flag("--load", to.load, "weights to start from").existing_file();
  program.flag("--limit", to.limit, "use only the first images of each split, for a quick try")
      .positive();
}

std::unique_ptr<ht::optim::Optimizer> make_optimizer(const Arguments& a,
                                                     const std::vector<ht::Tensor>& parameters) {
  const auto lr = [&](double usual) { return a.lr > 0 ? a.lr : usual; };
  if (a.optimizer == "sgd")
    return std::make_unique<ht::optim::Sgd>(
        parameters, ht::optim::SgdOptions{.lr = lr(0.05), .momentum = 0.9, .nesterov = true});
  if (a.optimizer == "rmsprop")
    return std::make_unique<ht::optim::Rmsprop>(parameters,
                                                ht::optim::RmspropOptions{.lr = lr(1e-3)});
  if (a.optimizer == "adam")
    return std::make_unique<ht::optim::Adam>(parameters, ht::optim::AdamOptions{.lr = lr(2e-3)});
  if (a.optimizer == "lion")
    return std::make_unique<ht::optim::Lion>(
        parameters, ht::optim::LionOptions{.lr = lr(3e-4), .weight_decay = 0.05});
  if (a.optimizer == "lamb")
    return std::make_unique<ht::optim::Lamb>(
        parameters, ht::optim::LambOptions{.lr = lr(1e-2), .weight_decay = 0.05});
  if (a.optimizer == "muon")
    return std::make_unique<ht::optim::Muon>(
        parameters, ht::optim::MuonOptions{.lr = lr(1e-2), .vector_lr_factor = 0.2});
  return std::make_unique<ht::optim::AdamW>(
      parameters, ht::optim::AdamWOptions{.lr = lr(2e-3), .weight_decay = 0.05});
}

void train(ht::nn::Layer& model, const ht::data::ByteImages& images,
           const ht::data::ByteImages& test_images, const Arguments& arguments) {
  using ht::optim::LrSchedule;
  const ht::Device device = ht::device_named(arguments.device);
  ht::data::DataLoader loader(
      images,
      {.batch_size = arguments.batch, .shuffle = true, .seed = arguments.seed, .device = device});
  const auto optimizer = make_optimizer(arguments, model.parameters());
  // The rate rises during the first steps, then falls along half a cosine to nearly nothing.
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
      progress.step(inputs.size(0), [&](const auto& show) {  // only if it draws
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
  ht::files::require_replaceable("--save", arguments.save);  // now rather than after the training
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
            << ", f32, " << omp_get_max_threads() << " threads" << std::endl;
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
  Program program("Trains a small convolutional network on Fashion-MNIST.");
  add_flags(program, arguments);
  return program.run(argc, argv, [&] {
    if (arguments.threads > 0) omp_set_num_threads(arguments.threads);
    run(arguments);
  });
}
