// CIFAR-10 (Krizhevsky 2009): 50,000 training and 10,000 test photographs, 32 x 32 in color, 10
// classes, from the binary version (https://www.cs.toronto.edu/~kriz/cifar.html): records of one
// byte of label and 3 * 1024 of red, green and blue.
#pragma once

#include <string>

#include <halftone/data/images/byte_images.h>
#include <halftone/data/sets/fashion_mnist.h>

namespace halftone::data {

struct Cifar10Options {
  Split split = Split::train;
  /// The directory of data_batch_1.bin to data_batch_5.bin and test_batch.bin, or the parent of a
  /// directory cifar-10-batches-bin with them. Empty: the first of $HALFTONE_DATA/cifar10,
  /// ./data/cifar10 and /usr/share/datasets/cifar10 that has them.
  std::string directory{};
  std::vector<double> mean{0.4914, 0.4822, 0.4465}, std{0.2470, 0.2435, 0.2616};  // of training
  ImageTransform transform{};       // on u8 [32, 32, 3], before normalization
  int64_t images_per_file = 10000;  // images in each file; 0: any number
};

/// Returns batches of images, f32 [k, 3, 32, 32], normalized, and labels, i64 [k]. Throws
/// FormatError, naming the file, if one is missing, of another length or has a label above 9.
ByteImages cifar10(const Cifar10Options& options = {});

}  // namespace halftone::data
