// The helper of the lessons that train on Fashion-MNIST: images, accuracy, optimizers by name; the
// dataset and the grid of predictions of lesson 23.
#pragma once

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <halftone/core/files.h>
#include <halftone/halftone.h>

#include "program.h"

/// Returns a split of the dataset, from `directory` or the usual places; only its first `limit`
/// images, unless `limit` is 0.
inline halftone::data::ByteImages fashion_images(halftone::data::Split split,
                                                 const std::string& directory, int64_t limit) {
  namespace ht = halftone;
  const ht::data::FashionMnistOptions options{.split = split, .directory = directory};
  ht::data::ByteImages all = ht::data::fashion_mnist(options);
  if (limit == 0 || limit >= all.size()) return all;
  return {ht::views::slice(all.images(), 0, 0, limit),
          ht::views::slice(all.labels(), 0, 0, limit),
          {.mean = {options.mean}, .std = {options.std}, .class_names = all.class_names()}};
}

inline double count_correct(const halftone::Tensor& logits, const halftone::Tensor& labels) {
  namespace ht = halftone;
  return ht::sum(ht::cast(ht::equal(ht::argmax(logits, -1), labels), ht::f32)).item();
}

/// Returns the share of a dataset's images that `model(images)`, a function to logits, classifies
/// correctly.
template <class Model>
double accuracy_of(const Model& model, const halftone::data::ByteImages& dataset,
                   halftone::Device device = {}) {
  const halftone::NoGrad no_grad;
  double correct = 0;
  for (auto [images, labels] :
       halftone::data::DataLoader(dataset, {.batch_size = 500, .device = device}))
    correct += count_correct(model(images), labels);
  return correct / double(dataset.size());
}

inline std::vector<std::string> optimizer_names() {
  return {"adamw", "adam",  "sgd",       "rmsprop", "lion", "adagrad",
          "nadam", "radam", "adafactor", "lamb",    "muon"};
}

/// Returns an optimizer with options that suit LeNet on Fashion-MNIST. `lr`: the highest learning
/// rate; 0: a rate that suits the optimizer.
inline std::unique_ptr<halftone::optim::Optimizer> make_optimizer(
    const std::string& name, const std::vector<halftone::Tensor>& parameters, double lr = 0) {
  namespace optim = halftone::optim;
  const auto or_usual = [lr](double usual) { return lr > 0 ? lr : usual; };
  if (name == "sgd")
    return std::make_unique<optim::Sgd>(
        parameters, optim::SgdOptions{.lr = or_usual(0.05), .momentum = 0.9, .nesterov = true});
  if (name == "rmsprop")
    return std::make_unique<optim::Rmsprop>(parameters,
                                            optim::RmspropOptions{.lr = or_usual(1e-3)});
  if (name == "adam")
    return std::make_unique<optim::Adam>(parameters, optim::AdamOptions{.lr = or_usual(2e-3)});
  if (name == "lion")
    return std::make_unique<optim::Lion>(
        parameters, optim::LionOptions{.lr = or_usual(3e-4), .weight_decay = 0.05});
  if (name == "adagrad")
    return std::make_unique<optim::Adagrad>(parameters,
                                            optim::AdagradOptions{.lr = or_usual(1e-2)});
  if (name == "nadam")
    return std::make_unique<optim::NAdam>(parameters, optim::NAdamOptions{.lr = or_usual(2e-3)});
  if (name == "radam")
    return std::make_unique<optim::RAdam>(parameters, optim::RAdamOptions{.lr = or_usual(2e-3)});
  if (name == "adafactor")
    return std::make_unique<optim::Adafactor>(parameters,
                                              optim::AdafactorOptions{.lr = or_usual(2e-2)});
  if (name == "lamb")
    return std::make_unique<optim::Lamb>(
        parameters, optim::LambOptions{.lr = or_usual(1e-2), .weight_decay = 0.05});
  if (name == "muon")
    return std::make_unique<optim::Muon>(
        parameters, optim::MuonOptions{.lr = or_usual(1e-2), .vector_lr_factor = 0.2});
  return std::make_unique<optim::AdamW>(
      parameters, optim::AdamWOptions{.lr = or_usual(2e-3), .weight_decay = 0.05});
}

// A dataset as directories of PNG files, and a grid of predictions, for lesson 23.

inline void make_directory(const std::filesystem::path& directory) {
  halftone::files::make_directories("--work", directory);
}

/// Writes the first `per_class` images of classes first to first + 4 as directory/CLASS/NUMBER.png,
/// and replaces the files of an earlier run.
inline void write_folder(const halftone::data::ByteImages& images, int64_t first, int64_t per_class,
                         const std::filesystem::path& directory) {
  namespace ht = halftone;
  std::error_code ignored;  // a file that cannot be removed causes an error when it is written
  std::filesystem::remove_all(directory, ignored);
  std::array<int64_t, 10> written{};
  const auto labels = images.labels().to_vector<int64_t>();
  for (int64_t i = 0; i < images.size(); ++i) {
    const int64_t label = labels[std::size_t(i)];
    if (label < first || label >= first + 5 || written[std::size_t(label)] == per_class) continue;
    std::string name = images.class_names()[std::size_t(label)];
    std::ranges::replace(name, '/', '-');
    make_directory(directory / name);
    const ht::Tensor image = ht::views::slice(images.images(), 0, i, 1);
    const auto file = std::to_string(written[std::size_t(label)]++) + ".png";
    ht::data::write_png(directory / name / file, ht::views::reshaped(image, {28, 28}));
  }
}

/// Writes 64 images of a dataset, 8 by 8, with a green frame if the model is right and a red one if
/// not.
inline void write_grid(const halftone::data::ImageFiles& files, const halftone::nn::Layer& model,
                       const std::filesystem::path& png) {
  namespace ht = halftone;
  constexpr int64_t tile = 64, frame = 4, side = 8, pitch = tile + 2 * frame;
  ht::Tensor grid = ht::zeros({side * pitch, side * pitch, 3}, ht::u8);
  const ht::NoGrad no_grad;
  for (int64_t i = 0; i < side * side; ++i) {
    const std::array<int64_t, 1> which{i * files.size() / (side * side)};
    const auto [input, label] = files.batch(which);
    const bool right = ht::argmax(model(input)).item() == label.item();
    const auto part = [&](int64_t inset, int64_t size) {
      const int64_t top = i / side * pitch + inset, left = i % side * pitch + inset;
      return ht::views::slice(ht::views::slice(grid, 0, top, size), 1, left, size);
    };
    ht::Tensor square = part(0, pitch), inner = part(frame, tile);
    ht::Tensor color = ht::views::slice(square, 2, right ? 1 : 0, 1);
    ht::backend_for(grid).fill(255, color);
    const ht::Tensor image = ht::data::read_image(files.files()[std::size_t(which[0])].path);
    ht::backend_for(grid).copy(ht::data::resize_image(image, tile, tile), inner);
  }
  ht::data::write_png(png, grid);
}
