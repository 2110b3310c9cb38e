// Lesson 23: fine-tuning on your own images. You will see a ResNet-18 load weights from any
// torchvision-style .safetensors, get a new last layer, and learn your classes under bf16 autocast
// from a directory of JPEG and PNG files. Without --data it makes such directories from
// Fashion-MNIST: it first learns half of the classes, then uses those weights to learn the other
// half.
#include <omp.h>

#include <cstdio>
#include <filesystem>
#include <iostream>


#include "fashion.h"

namespace ht = halftone;
namespace fs = std::filesystem;

namespace {

struct Arguments {
  std::string data, weights, work = "finetune_resnet18", strategy = "amp-bf16", device = "cpu";
  int64_t epochs = 4, batch = 32, size = 224, width = 64, per_class = 250;
  double lr = 1e-3;
  uint64_t seed = 0;
  int threads = omp_get_max_threads(), workers = 2;
};

void add_flags(Program& program, Arguments& to) {
  program.flag("--data", to.data, "directory with train/CLASS/*.jpg and val/CLASS/*.jpg");
  program.flag("--weights", to.weights, "torchvision-style .safetensors to start from");
  program.flag("--work", to.work, "directory for the output files");
  program.flag("--strategy", to.strategy, "of amp/policy.h");
  program.flag("--epochs", to.epochs).within(1, 1000);
  program.flag("--batch", to.batch).within(2, 4096);
  program.flag("--size", to.size, "side of the images").within(32, 1024);
  program.flag("--width", to.width, "channels of the first stage").within(1, 512);
  program.flag("--per-class", to.per_class, "without --data: training images of each class")
      .within(10, 5000);
  program.flag("--lr", to.lr, "highest rate of AdamW").positive();
  program.flag("--seed", to.seed, "seed of weights, order and augmentation");
  program.device(to.device);
  program.flag("--threads", to.threads).within(1, 1024);
  program.flag("--workers", to.workers, "threads that decode").within(0, 64);
}

/// Reads the images of a directory: random crops, mirrored, for training; center crops for
/// validation.
ht::data::ImageFiles files_of(const fs::path& directory, int64_t size, bool training) {
  using namespace ht::data;
  const Normalize normalize{{0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}};
  const Compose random{
      {RandomResizedCrop{.size = size, .min_area = 0.5}, RandomHorizontalFlip{}, normalize}};
  const Compose middle{{Resize{.shorter_side = size}, CenterCrop{size}, normalize}};
  return image_folder(directory,
                      {.transform = training ? random : middle, .broken = BrokenFiles::replace});
}

ht::nn::models::ResNet make_model(const Arguments& a, int64_t classes) {
  return ht::nn::models::resnet18(
      {.classes = classes, .width = a.width, .cifar_stem = a.size <= 64});
}

/// Loads all weights except those of the last layer, which belongs to other classes.
void load_backbone(ht::nn::models::ResNet& model, const fs::path& path) {
  ht::nn::NamedTensors state = ht::nn::load_safetensors(path).tensors;
  state.erase("fc.weight"), state.erase("fc.bias");
  const ht::nn::LoadReport report = ht::nn::load_state_dict(model, state, {.strict = false});
  std::printf("%zu tensors from %s; %zu are new\n", state.size() - report.unexpected.size(),
              path.c_str(), report.missing.size());
}

/// Trains, and returns the accuracy of the last validation in percent.
double fit(const char* what, ht::nn::models::ResNet& model, const fs::path& directory,
           const Arguments& a) {
  const auto train = files_of(directory / "train", a.size, true),
             val = files_of(directory / "val", a.size, false);
  if (train.class_names() != val.class_names())
    ht::fail<ht::UsageError>("--data", "train and val in ", directory.string(),
                             " have different classes. Give both the same sub-directories.");
  std::printf("%s: %zu classes, %ld images, %ld to validate\n", what, train.class_names().size(),
              long(train.size()), long(val.size()));
  const ht::Device device = ht::device_named(a.device);
  const ht::data::DataLoader images(train, {.batch_size = a.batch,
                                            .shuffle = true,
                                            .drop_last = true,
                                            .workers = a.workers,
                                            .seed = a.seed,
                                            .device = device}),
      held_out(val, {.batch_size = 50, .device = device});
  model.to(device);
  ht::optim::AdamW adamw(model.parameters(), {.lr = a.lr, .weight_decay = 0.05});
  ht::train::Trainer trainer(
      ht::train::classification(model, {.loss = {.label_smoothing = 0.1}}), adamw,
      {.precision = a.strategy,
       .max_epochs = a.epochs,
       .schedule = [](int64_t steps) { return ht::optim::LrSchedule::cosine(steps, 0.01); },
       .log_every_steps = 1000,
       .model_summary = false});
  const ht::train::FitResult result = trainer.fit(images, held_out);
  model.to(ht::Device::cpu());
  for (const std::string& file : train.broken_files()) std::cout << "skipped " << file << '\n';
  return 100 * result.metrics.at("val/top1");
}

void run(Arguments a) {
  ht::manual_seed(a.seed);
  const fs::path work = a.work;
  make_directory(work);
  fs::path data = a.data, weights = a.weights;
  if (a.data.empty()) {
    const auto train = fashion_images(ht::data::Split::train, "", 0),
               test = fashion_images(ht::data::Split::test, "", 0);
    for (const int64_t first : {0, 5}) {
      const fs::path half = work / (first == 0 ? "first_half" : "second_half");
      write_folder(train, first, a.per_class, half / "train");
      write_folder(test, first, 100, half / "val");
    }
    data = work / "second_half";
  }
  if (a.data.empty() && a.weights.empty()) {
    auto model = make_model(a, 5);
    fit("pre-training", model, work / "first_half", a);
    weights = work / "pretrained.safetensors";
    model.to(ht::f32);
    ht::nn::save(model, weights);
  }
  auto model = make_model(a, int64_t(files_of(data / "train", a.size, true).class_names().size()));
  if (!weights.empty()) load_backbone(model, weights);
  const double accuracy = fit("fine-tuning", model, data, a);
  model.to(ht::f32), model.eval();
  ht::nn::save(model, work / "finetuned.safetensors");
  write_grid(files_of(data / "val", a.size, false), model, work / "predictions.png");
  std::printf("final accuracy %.2f %%; weights and predictions.png in %s\n", accuracy,
              work.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  Program program("Fine-tunes a ResNet-18 on a directory of images.");
  add_flags(program, arguments);
  return program.run(argc, argv, [&] {
    omp_set_num_threads(arguments.threads);
    if (arguments.data.empty() && !program.given("--size")) arguments.size = 32;
    if (arguments.data.empty() && !program.given("--width")) arguments.width = 16;
    run(arguments);
  });
}

// Conclusion. Fine-tuning is loading by name, a new last layer, and a small learning rate. Weights
// are matched by name and shape; what does not match is reported, not guessed.
//
// Exercises
// 1 (predict). Train without --weights and with them, two epochs each. How far apart are they?
// 2 (implement). Freeze all layers but the last: give AdamW only the parameters of fc.
// 3 (design). Your images have four channels. What do you do with the first convolution's weights?
