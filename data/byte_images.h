// Labelled images kept as the bytes they were read as and turned into normalised floats per batch,
// by the thread that collates. A dataset of bytes takes a quarter of the memory of a dataset of
// floats.
#pragma once

#include <array>
#include <string>
#include <vector>

#include <halftone/data/dataset.h>

namespace halftone::data {

struct ByteImagesOptions {
  std::vector<double> mean{}, std{};  // per channel, of values scaled to [0, 1]; empty: 0 and 1
  std::vector<std::string> class_names{};
};

class ByteImages final : public Dataset {
 public:
  /// images: u8 [n, channels, height, width]; labels: i64 [n], below the number of class names if
  /// there are any.
  ByteImages(const Tensor& images, const Tensor& labels, ByteImagesOptions options = {});

  int64_t size() const override { return images_.size(0); }
  /// inputs: f32 [k, channels, height, width], (byte / 255 - mean) / std; targets: i64 [k].
  Batch batch(std::span<const int64_t> indices) const override;

  const Tensor& images() const { return images_; }
  const Tensor& labels() const { return labels_; }
  const std::vector<std::string>& class_names() const { return class_names_; }

 private:
  Tensor images_, labels_;
  std::vector<std::string> class_names_;
  std::vector<std::array<float, 256>> value_of_;  // [channel][byte]
};

}  // namespace halftone::data
