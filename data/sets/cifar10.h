// CIFAR-10 (Krizhevsky 2009): 50,000 training and 10,000 test photographs, 32 x 32 in colour, 10
// classes, from the binary version (https://www.cs.toronto.edu/~kriz/cifar.html): records of one
// byte of label and 3 * 1024 of red, green and blue.
#pragma once

#include <string>

#include <halftone/data/images/byte_images.h>
#include <halftone/data/sets/fashion_mnist.h>

namespace halftone::data {

struct Cifar10Options {
  Split split = Split::train;
  /// Where data_batch_1.bin to data_batch_5.bin and test_batch.bin are, or a directory
  /// cifar-10-batches-bin with them. Empty: the first that has them of $HALFTONE_DATA/cifar10,
  /// ./data/cifar10 and /usr/share/datasets/cifar10.
  std::string directory{};
  std::vector<double> mean{0.4914, 0.4822, 0.4465}, std{0.2470, 0.2435, 0.2616};  // of training
  ImageTransform transform{};       // on u8 [32, 32, 3], before normalising
  int64_t images_per_file = 10000;  // what each file must have; 0: any number
};

/// Batches of images, f32 [k, 3, 32, 32], normalised, and labels, i64 [k]. Throws FormatError,
/// which names the file, for one that is missing, of another length or with a label above 9.
ByteImages cifar10(const Cifar10Options& options = {});

}  // namespace halftone::data
