// Fashion-MNIST (Xiao, Rasul and Vollgraf 2017, arXiv:1708.07747): 60,000 training and 10,000 test
// images of clothes, 28 x 28 grey, 10 classes. The default data of the examples: Debian packages
// it, so nothing needs a download.
#pragma once

#include <string>

#include <halftone/data/images/byte_images.h>

namespace halftone::data {

enum class Split : uint8_t { train, test };

struct FashionMnistOptions {
  Split split = Split::train;
  /// Where the four IDX files are, compressed or not. Empty: the first that has them of
  /// $HALFTONE_DATA/fashion-mnist,
  /// ./data/fashion-mnist and /usr/share/datasets/fashion-mnist.
  std::string directory{};
  double mean = 0.2860, std = 0.3530;  // of the training pixels, scaled to [0, 1]
  ImageTransform transform{};          // on u8 [28, 28, 1], before normalising
};

/// Batches of images, f32 [k, 1, 28, 28], normalised, and labels, i64 [k].
ByteImages fashion_mnist(const FashionMnistOptions& options = {});

}  // namespace halftone::data
