// Labeled images stored as bytes. The thread that collates a batch turns them into
// normalized floats. A dataset of bytes takes a quarter of the memory of a dataset of
// floats.
#pragma once

#include <array>
#include <string>
#include <vector>

#include <halftone/data/dataset.h>
#include <halftone/data/transforms.h>

namespace halftone::data {

struct ByteImagesOptions {
  std::vector<double> mean{}, std{};  // per channel, for values scaled to [0, 1]; empty: 0 and 1
  std::vector<std::string> class_names{};
  /// Applied before normalization: from u8 [height, width, channels] to u8 of any size, with the
  /// same number of channels.
  ImageTransform transform{};
};

class ByteImages final : public Dataset {
 public:
  /// images: u8 [n, channels, height, width]; labels: i64 [n], below the number of class names if
  /// there are any.
  ByteImages(const Tensor& images, const Tensor& labels, ByteImagesOptions options = {});

  int64_t size() const override { return images_.size(0); }
  /// inputs: f32 [k, channels, height, width], (byte / 255 - mean) / std, of the transformed
  /// images; targets: i64 [k]. Throws ShapeError if the transform returns other tensors, or images
  /// of several sizes.
  Batch batch_in_epoch(std::span<const int64_t> indices, const EpochKey& key) const override;
  Batch batch(std::span<const int64_t> indices) const override {
    return batch_in_epoch(indices, {});
  }

  const Tensor& images() const { return images_; }
  const Tensor& labels() const { return labels_; }
  const std::vector<std::string>& class_names() const { return class_names_; }

 private:
  Tensor normalized(std::span<const int64_t> indices) const;
  Tensor transformed(std::span<const int64_t> indices, const EpochKey& key) const;

  Tensor images_, labels_;
  std::vector<std::string> class_names_;
  ImageTransform transform_;
  std::vector<std::array<float, 256>> value_of_;  // [channel][byte]
};

}  // namespace halftone::data
