// Published sets of images, read from their files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <halftone/core/tensor.h>
#include <halftone/data/images.h>

namespace halftone::data {

// Reads the bytes of a whole file, for the readers of this folder: with a limit before anything is
// read, and one set of messages for files that are missing, of another kind or too large.

/// Returns all bytes of a regular file. Throws FormatError, in the name of `op`, for a missing
/// path, for a directory, pipe or the like, for more than max_bytes and for a failing read.
std::string file_bytes(std::string_view op, const std::filesystem::path& path, int64_t max_bytes);

// Directories in which a named dataset is searched if the user names no directory.

/// Returns only `given` if that is not empty; else $HALFTONE_DATA/name (if the variable is set),
/// then data/name here and /usr/share/datasets/name. Throws FormatError if the variable does not
/// name a directory.
std::vector<std::filesystem::path> directories_to_search(const std::string& given,
                                                         std::string_view name);
/// Returns "a, b or c", for messages.
std::string listed(const std::vector<std::filesystem::path>& directories);

// IDX, the file format of MNIST and similar datasets (http://yann.lecun.com/exdb/mnist, "the IDX
// file format"):
//   00 00 type rank, then rank sizes as big-endian u32, then the elements, row-major.

/// Returns a u8 tensor of rank 1 to 4 from an IDX file of unsigned bytes (type 08), gzip-compressed
/// or plain. At most 2 GiB of elements, which are in memory only once. Throws FormatError for files
/// that are missing, truncated, overlong, damaged or of another kind.
Tensor read_idx(const std::filesystem::path& path);

// Fashion-MNIST (Xiao, Rasul and Vollgraf 2017, arXiv:1708.07747): 60,000 training and 10,000 test
// images of clothes, 28 x 28 gray, 10 classes. The default data of the examples: Debian packages
// it, so no download is needed.

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

/// Returns a dataset with batches of normalized images, f32 [k, 1, 28, 28], and labels, i64 [k].
ByteImages fashion_mnist(const FashionMnistOptions& options = {});

// CIFAR-10 (Krizhevsky 2009): 50,000 training and 10,000 test photographs, 32 x 32 in color, 10
// classes, from the binary version (https://www.cs.toronto.edu/~kriz/cifar.html): records of one
// byte of label and 3 * 1024 of red, green and blue.

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

/// Returns a dataset with batches of normalized images, f32 [k, 3, 32, 32], and labels, i64 [k].
/// Throws FormatError, naming the file, if one is missing or of another length, or a label above 9.
ByteImages cifar10(const Cifar10Options& options = {});

// Oxford-IIIT Pet (Parkhi et al. 2012): 7,349 photographs of cats and dogs of 37 breeds, about 200
// each, in the layout of the two archives of https://www.robots.ox.ac.uk/~vgg/data/pets/:
//   images/Abyssinian_100.jpg ..., annotations/trainval.txt, annotations/test.txt

struct OxfordPetsOptions {
  Split split = Split::train;  // train: trainval.txt, 3,680 images; test: test.txt, 3,669
  /// The directory with images/ and annotations/. Empty: the first of
  /// $HALFTONE_DATA/oxford-iiit-pet, ./data/oxford-iiit-pet and /usr/share/datasets/oxford-iiit-pet
  /// that has them.
  std::string directory{};
  ImageTransform transform{};  // empty: f32 [3, height, width] on [0, 1], of all sizes
  ImageOptions image{};
  BrokenFiles broken = BrokenFiles::fail;
};

/// Returns the images of a split. Labels are the list's CLASS-ID - 1, 0 to 36; class names come
/// from the image names ("american_bulldog_12" is of "American Bulldog"). The order is that of the
/// list. Throws FormatError, which names the file and the line, for a list that is missing or
/// malformed. Images are not opened before a batch needs them.
ImageFiles oxford_pets(const OxfordPetsOptions& options = {});

}  // namespace halftone::data
