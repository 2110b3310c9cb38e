// Transforms of one image, u8 [height, width, channels], as torchvision names them and with its
// defaults; the arithmetic of resizing and colours is that of Pillow, to the bit. A transform is
// any function of an image and a generator, so a lambda serves as well:
//   Compose{{RandomResizedCrop{224}, RandomHorizontalFlip{}, Normalize{mean, std}}}
// All throw ShapeError or DTypeError for tensors that are no images, UsageError for settings.
#pragma once

#include <functional>
#include <vector>

#include <halftone/core/random.h>
#include <halftone/core/tensor.h>

namespace halftone::data {

/// From an image, u8 [height, width, channels], to another or to the tensor that the model gets.
/// All randomness comes from the generator, which belongs to (seed, epoch, sample).
using ImageTransform = std::function<Tensor(const Tensor& image, Generator& random)>;

/// One after the other.
struct Compose {
  std::vector<ImageTransform> steps;
  Tensor operator()(const Tensor& image, Generator& random) const;
};

/// Bilinear, antialiased when shrinking: to height x width if they are given, else so that the
/// shorter side becomes `shorter_side` and the other keeps the aspect ratio, rounded down.
struct Resize {
  int64_t shorter_side = 0;
  int64_t height = 0, width = 0;
  Tensor operator()(const Tensor& image, Generator& random) const;
};

/// The middle [size, size]; what a smaller image lacks is black.
struct CenterCrop {
  int64_t size = 0;
  Tensor operator()(const Tensor& image, Generator& random) const;
};

/// A random [size, size] of the image with `padding` black pixels on each side.
struct RandomCrop {
  int64_t size = 0, padding = 0;
  Tensor operator()(const Tensor& image, Generator& random) const;
};

/// A random part, of this share of the area and this ratio of width to height, resized to
/// [size, size] (Szegedy et al. 2015, arXiv:1409.4842).
struct RandomResizedCrop {
  int64_t size = 0;
  double min_area = 0.08, max_area = 1;
  double min_aspect = 3.0 / 4, max_aspect = 4.0 / 3;
  Tensor operator()(const Tensor& image, Generator& random) const;
};

struct RandomHorizontalFlip {
  double probability = 0.5;
  Tensor operator()(const Tensor& image, Generator& random) const;
};

/// Changes in random order, with factors on [1 - x, 1 + x] (not below 0), and for hue shifts on
/// [-hue, hue] of the colour circle, at most 0.5. Grey images keep saturation and hue.
struct ColorJitter {
  double brightness = 0, contrast = 0, saturation = 0, hue = 0;
  Tensor operator()(const Tensor& image, Generator& random) const;
};

/// (byte / 255 - mean) / std as f32 [channels, height, width]; mean and std per channel, of values
/// on [0, 1]. Empty: 0 and 1. Usually the last step, and what a dataset without transforms does.
struct Normalize {
  std::vector<double> mean{}, std{};
  Tensor operator()(const Tensor& image, Generator& random) const;
};

// --- the same without randomness

Tensor resize_image(const Tensor& image, int64_t height, int64_t width);
/// Rows [top, top + height) and columns [left, left + width); black outside of the image.
Tensor crop_image(const Tensor& image, int64_t top, int64_t left, int64_t height, int64_t width);
Tensor flip_image(const Tensor& image);
/// Factors: 0 is black, uniformly grey, or without colour; 1 changes nothing; more exaggerates.
Tensor adjust_brightness(const Tensor& image, double factor);
Tensor adjust_contrast(const Tensor& image, double factor);
Tensor adjust_saturation(const Tensor& image, double factor);
/// A turn of the colour circle, on [-0.5, 0.5].
Tensor adjust_hue(const Tensor& image, double turn);

}  // namespace halftone::data
