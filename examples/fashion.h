// Helpers of the lessons that train on Fashion-MNIST.
#pragma once

#include <string>

#include <halftone/halftone.h>

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
