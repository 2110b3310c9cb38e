// A directory with one sub-directory of images per class, as torchvision's ImageFolder reads it:
//   root/cat/1.jpg, root/cat/more/2.png, root/dog/3.jpeg
#pragma once

#include <filesystem>

#include <halftone/data/images.h>

namespace halftone::data {

struct ImageFolderOptions {
  ImageTransform transform{};  // empty: f32 [channels, height, width] on [0, 1]
  ImageOptions image{};
  BrokenFiles broken = BrokenFiles::fail;
  std::vector<std::string> extensions{".jpg", ".jpeg", ".png"};  // in any case of letters
};

/// Returns the images. Classes are the sub-directories, sorted by byte, numbered from 0; samples
/// are ordered by class, directory and name. Directories below a class count, links to directories
/// there are not followed, and names that begin with a dot are ignored (torchvision takes them).
/// Throws FormatError for a missing directory, one without classes, a class without images, and a
/// directory that is one level too high: all classes are called "train", "test" or the like and
/// hold only directories.
ImageFiles image_folder(const std::filesystem::path& directory,
                        const ImageFolderOptions& options = {});

}  // namespace halftone::data
