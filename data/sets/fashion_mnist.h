// Fashion-MNIST (Xiao, Rasul and Vollgraf 2017, arXiv:1708.07747): 60,000 training and 10,000 test
// images of clothes, 28 x 28 gray, 10 classes. The default data of the examples: Debian packages
// it, so no download is needed.
#pragma once

#include <string>

#include <halftone/data/images/byte_images.h>

namespace halftone::data {

enum class Split : uint8_t { train, test };

struct FashionMnistOptions {
  Split split = Split::train;
  /// The directory of the four IDX files, compressed or not. Empty: the first of
  /// $HALFTONE_DATA/fashion-mnist, ./data/fashion-mnist and /usr/share/datasets/fashion-mnist that
  /// has them.
  std::string directory{};
  double mean = 0.2860, std = 0.3530;  // of the training pixels, scaled to [0, 1]
  ImageTransform transform{};          // on u8 [28, 28, 1], before normalization
};

/// Returns batches of images, f32 [k, 1, 28, 28], normalized, and labels, i64 [k].
ByteImages fashion_mnist(const FashionMnistOptions& options = {});

}  // namespace halftone::data
