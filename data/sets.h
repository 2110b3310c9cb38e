// Oxford-IIIT Pet (Parkhi et al. 2012): 7,349 photographs of cats and dogs of 37 breeds, about 200
// each, in the layout of the two archives of https://www.robots.ox.ac.uk/~vgg/data/pets/:
//   images/Abyssinian_100.jpg ..., annotations/trainval.txt, annotations/test.txt
#pragma once

#include <string>

#include <halftone/data/images.h>
#include <halftone/data/sets/fashion_mnist.h>

namespace halftone::data {

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
