// TensorDataset and ByteImages: the content of a batch, and refusals of the constructors.
#include <doctest/doctest.h>

#include <halftone/core/factory.h>
#include <halftone/core/tensor.h>
#include <halftone/data/dataset.h>
#include <halftone/data/images.h>

#include "../support.h"

namespace halftone::test::tensor_dataset_test {

using data::Batch, data::ByteImages, data::TensorDataset;

TEST_CASE("TensorDataset collates rows in the requested order") {
  const TensorDataset dataset(from({{1.0, 2}, {3, 4}, {5, 6}}), from({10, 20, 30}, i64));
  CHECK(dataset.size() == 3);
  const std::vector<int64_t> indices{2, 0, 2};
  const auto [x, y] = dataset.batch(indices);
  CHECK(x.shape() == Shape{3, 2});
  CHECK(x.to_vector<float>() == std::vector<float>{5, 6, 1, 2, 5, 6});
  CHECK(y.dtype() == i64);
  CHECK(y.to_vector<int64_t>() == std::vector<int64_t>{30, 10, 30});
  CHECK(dataset.batch({}).inputs.shape() == Shape{0, 2});
}

TEST_CASE("TensorDataset accepts strided tensors and every dtype") {
  const Tensor x = views::transpose(from({{1, 2, 3}, {4, 5, 6}}, bf16), 0, 1);  // [3, 2]
  const TensorDataset dataset(x, ones({3}, boolean));
  const std::vector<int64_t> indices{1};
  const Batch batch = dataset.batch(indices);
  CHECK(batch.inputs.dtype() == bf16);
  CHECK(batch.inputs.to_vector<float>() == std::vector<float>{2, 5});
  CHECK(batch.targets.dtype() == boolean);
}

TEST_CASE("TensorDataset explains invalid arguments") {
  CHECK(message_of<ShapeError>([] {
          TensorDataset(zeros({3, 2}), zeros({4}, i64));
        }) ==
        "[TensorDataset] numbers of samples differ: inputs are [3, 2] f32, targets are [4] i64; "
        "inputs.size(0) must "
        "equal targets.size(0).");
  CHECK(message_of<ShapeError>([] { TensorDataset(scalar(1), zeros({1})); }) ==
        "[TensorDataset] inputs have no first dimension: they must be [samples, ...]. Pass a "
        "tensor of rank 1 or "
        "more.");
  CHECK(contains(message_of<ShapeError>([] { TensorDataset(zeros({1}), Tensor()); }),
                 "targets have no first"));
  for (const int64_t index : {int64_t(-1), int64_t(3), INT64_MAX}) {
    const TensorDataset dataset(zeros({3, 2}), zeros({3}));
    CHECK(message_of<UsageError>([&] {
            dataset.batch({&index, 1});
          }) == "[Dataset] there is no sample " + std::to_string(index) +
                    ": the dataset has 3. Number samples from 0 to size() - 1.");
  }
}

TEST_CASE("ByteImages normalizes per channel") {
  // Two images of two channels, 1 x 2 pixels.
  const Tensor images = from_vector<uint8_t>({0, 255, 51, 102, 1, 2, 3, 4}, {2, 2, 1, 2}, u8);
  const ByteImages dataset(images, from({1, 0}, i64),
                           {.mean = {0.5, 0}, .std = {0.25, 2}, .class_names = {"a", "b"}});
  const std::vector<int64_t> indices{0};
  const auto [x, y] = dataset.batch(indices);
  CHECK(x.shape() == Shape{1, 2, 1, 2});
  CHECK(x.to_vector<float>() ==
        std::vector<float>{-2.0f, 2.0f, (51 / 255.0f) / 2, (102 / 255.0f) / 2});
  CHECK(y.to_vector<int64_t>() == std::vector<int64_t>{1});

  const ByteImages plain(images, from({1, 0}, i64));
  CHECK(plain.batch(indices).inputs.to_vector<float>()[1] == 1.0f);
}

TEST_CASE("ByteImages explains invalid arguments") {
  const Tensor images = zeros({2, 1, 4, 4}, u8), labels = zeros({2}, i64);
  CHECK(contains(message_of<ShapeError>([&] {
                   ByteImages(zeros({2, 1, 4, 4}), labels);
                 }),
                 "[ByteImages] images and labels do not fit: images are [2, 1, 4, 4] f32, labels "
                 "are [2] i64"));
  CHECK(contains(message_of<ShapeError>([&] { ByteImages(images, zeros({3}, i64)); }),
                 "labels are [3] i64"));
  CHECK(contains(message_of<ShapeError>([&] { ByteImages(images, Tensor()); }), "undefined"));
  CHECK(message_of<UsageError>([&] {
          ByteImages(images, labels, {.mean = {1, 2, 3}});
        }) ==
        "[ByteImages] 3 values of mean for images of 1 channels. Give one value per channel.");
  CHECK(contains(message_of<UsageError>([&] { ByteImages(images, labels, {.std = {0}}); }),
                 "cannot normalize channel 0: mean is 0, std is 0"));
  CHECK(
      message_of<UsageError>([&] {
        ByteImages(images, from({0, 2}, i64), {.class_names = {"a", "b"}});
      }) ==
      "[ByteImages] label out of range: sample 1 has label 2 of 2 classes. Number classes from 0.");
}

}  // namespace halftone::test::tensor_dataset_test
