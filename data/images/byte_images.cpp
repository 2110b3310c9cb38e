// Bytes become normalized floats by a table of 256 values per channel: exact in the arithmetic of
// PyTorch's transforms (f32 division by 255, subtraction, division), at the cost of a load.
#include <halftone/data/images/byte_images.h>

#include <cmath>
#include <utility>

#include <halftone/core/factory.h>
#include <halftone/data/images/image.h>
#include <halftone/data/images/per_channel.h>
#include <halftone/data/tensor_dataset.h>

namespace halftone::data {

namespace {
void check_tensors(const Tensor& images, const Tensor& labels) {
  const bool fit = images.defined() && labels.defined() && images.rank() == 4 &&
                   images.dtype() == u8 && labels.rank() == 1 && labels.dtype() == i64 &&
                   images.size(0) == labels.size(0);
  if (fit) return;
  if (!images.defined() || !labels.defined())
    fail<ShapeError>(
        "ByteImages",
        "images or labels are undefined. Pass u8 [n, channels, height, width] and i64 [n].");
  fail<ShapeError>("ByteImages", "images and labels do not fit: images are ", described(images),
                   ", labels are ", described(labels),
                   ". Pass u8 [n, channels, height, width] and i64 [n].");
}

void check_labels(const Tensor& labels, int64_t classes) {
  const int64_t* label = labels.data<int64_t>();
  for (int64_t i = 0; i < labels.size(0); ++i)
    if (label[i] < 0 || label[i] >= classes)
      fail<UsageError>("ByteImages", "label out of range: sample ", i, " has label ", label[i],
                       " of ", classes, " classes. Number classes from 0.");
}
}  // namespace

ByteImages::ByteImages(const Tensor& images, const Tensor& labels, ByteImagesOptions options)
    : class_names_(std::move(options.class_names)), transform_(std::move(options.transform)) {
  check_tensors(images, labels);
  const TensorDataset rows(images, labels);  // row-major, on the CPU
  images_ = rows.inputs(), labels_ = rows.targets();
  if (!class_names_.empty()) check_labels(labels_, int64_t(class_names_.size()));

  const int64_t channels = images_.size(1);
  const std::vector<double> mean =
      per_channel("ByteImages", "mean", std::move(options.mean), 0, channels);
  const std::vector<double> std =
      per_channel("ByteImages", "std", std::move(options.std), 1, channels);
  value_of_.resize(std::size_t(channels));
  for (std::size_t c = 0; c < value_of_.size(); ++c) {
    if (!(std[c] > 0) || !std::isfinite(std[c]) || !std::isfinite(mean[c]))
      fail<UsageError>("ByteImages", "cannot normalize channel ", c, ": mean is ", mean[c],
                       ", std is ", std[c], ". Give a finite mean and a finite std above 0.");
    for (int byte = 0; byte < 256; ++byte)
      value_of_[c][std::size_t(byte)] = (float(byte) / 255.0f - float(mean[c])) / float(std[c]);
  }
}

Tensor ByteImages::transformed(std::span<const int64_t> indices, const EpochKey& key) const {
  const Shape& shape = images_.shape();
  const int64_t channels = shape[1], plane = shape[2] * shape[3];
  std::vector<Tensor> results;
  for (const int64_t index : indices) {
    const Tensor image = empty({shape[2], shape[3], channels}, u8);
    const uint8_t* x = images_.data<uint8_t>() + index * channels * plane;
    for (int64_t c = 0; c < channels; ++c)
      for (int64_t i = 0; i < plane; ++i) image.data<uint8_t>()[i * channels + c] = *x++;
    Generator random = key.generator_for(index);
    results.push_back(transform_(image, random));
    const Tensor& result = results.back();
    check_image("ByteImages", result);
    if (result.size(2) != channels)
      fail<ShapeError>("ByteImages", "the transform changed the number of channels: sample ", index,
                       " became ", described(result), ", it had ", channels,
                       ". Normalizing comes after it; keep u8 and the channels.");
  }
  return stack_samples("ByteImages", results, indices);
}

Batch ByteImages::batch_in_epoch(std::span<const int64_t> indices, const EpochKey& key) const {
  const Tensor labels = take_rows(labels_, indices);  // also checks the indices
  if (!transform_ || indices.empty()) return {normalized(indices), labels};

  const Tensor bytes = transformed(indices, key);  // [k, height, width, channels]
  const int64_t channels = bytes.size(3), plane = bytes.size(1) * bytes.size(2);
  const Tensor images = empty({bytes.size(0), channels, bytes.size(1), bytes.size(2)}, f32);
  const uint8_t* x = bytes.data<uint8_t>();
  float* y = images.data<float>();
  for (int64_t sample = 0; sample < bytes.size(0); ++sample, x += channels * plane)
    for (int64_t c = 0; c < channels; ++c)
      for (int64_t i = 0; i < plane; ++i) *y++ = value_of_[std::size_t(c)][x[i * channels + c]];
  return {images, labels};
}

Tensor ByteImages::normalized(std::span<const int64_t> indices) const {
  Shape shape = images_.shape();
  shape[0] = int64_t(indices.size());
  Tensor images = empty(shape, f32);
  const int64_t plane = shape[2] * shape[3], image = shape[1] * plane;
  const uint8_t* bytes = images_.data<uint8_t>();
  float* y = images.data<float>();
  for (const int64_t index : indices) {
    const uint8_t* x = bytes + index * image;
    for (const std::array<float, 256>& value_of : value_of_)
      for (int64_t i = 0; i < plane; ++i) *y++ = value_of[*x++];
  }
  return images;
}

}  // namespace halftone::data
