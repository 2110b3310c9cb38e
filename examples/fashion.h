// The helper of the lessons that train on Fashion-MNIST: images, accuracy, optimizers by name.
#pragma once

#include <memory>
#include <string>
#include <vector>

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
  return {"adamw", "adam", "sgd", "rmsprop", "lion", "lamb", "muon"};
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
  if (name == "lamb")
    return std::make_unique<optim::Lamb>(
        parameters, optim::LambOptions{.lr = or_usual(1e-2), .weight_decay = 0.05});
  if (name == "muon")
    return std::make_unique<optim::Muon>(
        parameters, optim::MuonOptions{.lr = or_usual(1e-2), .vector_lr_factor = 0.2});
  return std::make_unique<optim::AdamW>(
      parameters, optim::AdamWOptions{.lr = or_usual(2e-3), .weight_decay = 0.05});
}
