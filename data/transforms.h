// Random changes of images and batches.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include <halftone/core/error.h>
#include <halftone/core/random.h>
#include <halftone/core/tensor.h>
#include <halftone/data/data_loader.h>

namespace halftone::data {

// Means and deviations given by callers: one value per channel, or none for the default.

/// Returns `values`, which must be one per channel; if it is empty, `otherwise` for each channel.
/// Throws UsageError for another count; the message begins with `caller` and calls the values
/// `what` ("mean").
inline std::vector<double> per_channel(std::string_view caller, std::string_view what,
                                       std::vector<double> values, double otherwise,
                                       int64_t channels) {
  if (values.empty()) values.assign(std::size_t(channels), otherwise);
  if (int64_t(values.size()) != channels)
    fail<UsageError>(caller, values.size(), " values of ", what, " for images of ", channels,
                     " channels. Give one value per channel.");
  return values;
}

// Transforms of one image, u8 [height, width, channels], with torchvision's names and defaults; the
// arithmetic of resizing and colors is that of Pillow, to the bit. A transform is any function of
// an image and a generator, so a lambda works as well:
//   Compose{{RandomResizedCrop{224}, RandomHorizontalFlip{}, Normalize{mean, std}}}
// All throw ShapeError, DTypeError or DeviceError for other tensors, UsageError for bad settings.

/// Maps an image, u8 [height, width, channels], to another one or to the model's input tensor. All
/// randomness comes from the generator, which belongs to (seed, epoch, sample).
using ImageTransform = std::function<Tensor(const Tensor& image, Generator& random)>;

/// Runs transforms one after the other.
struct Compose {
  std::vector<ImageTransform> steps;
  Tensor operator()(const Tensor& image, Generator& random) const;
};

/// Resizes, bilinear and antialiased when shrinking: to height x width if they are given; else the
/// shorter side becomes `shorter_side` and the other keeps the aspect ratio, rounded down.
struct Resize {
  int64_t shorter_side = 0;
  int64_t height = 0, width = 0;
  Tensor operator()(const Tensor& image, Generator& random) const;
};

/// Cuts out the middle [size, size]; parts outside a smaller image are black.
struct CenterCrop {
  int64_t size = 0;
  Tensor operator()(const Tensor& image, Generator& random) const;
};

/// Cuts out a random [size, size] of the image with `padding` black pixels on each side.
struct RandomCrop {
  int64_t size = 0, padding = 0;
  Tensor operator()(const Tensor& image, Generator& random) const;
};

/// Cuts out a random part, resized to [size, size]. Its share of the area and its ratio of width to
/// height are in these ranges; if ten tries do not fit, takes a part in the middle (Szegedy et al.
/// 2015, arXiv:1409.4842).
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

/// Changes brightness, contrast, saturation and hue, in random order. The first three get random
/// factors on [1 - x, 1 + x] (not below 0), where x is the member; hue turns by a random part of
/// the color circle on [-hue, hue], hue <= 0.5. Gray images keep saturation and hue.
struct ColorJitter {
  double brightness = 0, contrast = 0, saturation = 0, hue = 0;
  Tensor operator()(const Tensor& image, Generator& random) const;
};

/// Returns (byte / 255 - mean) / std as f32 [channels, height, width]; mean and std per channel,
/// for values on [0, 1]. Empty: 0 and 1. Usually the last step; ImageFiles applies it by default.
struct Normalize {
  std::vector<double> mean{}, std{};
  Tensor operator()(const Tensor& image, Generator& random) const;
};

// --- functions without randomness

Tensor resize_image(const Tensor& image, int64_t height, int64_t width);
/// Returns rows [top, top + height) and columns [left, left + width); black outside of the image.
Tensor crop_image(const Tensor& image, int64_t top, int64_t left, int64_t height, int64_t width);
/// Exchanges left and right.
Tensor flip_image(const Tensor& image);
/// With factor 0 the result is black, uniformly gray, or colorless; 1: unchanged; above: stronger.
Tensor adjust_brightness(const Tensor& image, double factor);
Tensor adjust_contrast(const Tensor& image, double factor);
Tensor adjust_saturation(const Tensor& image, double factor);
/// Turns the hue by `turn` of the color circle, on [-0.5, 0.5].
Tensor adjust_hue(const Tensor& image, double turn);

// Mixup (Zhang et al. 2018, arXiv:1710.09412): each image is blended with another one of its batch.
// The loss is blended alike, which equals the cross-entropy with soft targets without them:
//   MixedBatch mixed = mixup(batch, 0.2, random);
//   Tensor y = model(mixed.inputs);
//   loss = mixed.share * cross_entropy(y, mixed.targets)
//        + (1 - mixed.share) * cross_entropy(y, mixed.other_targets);

struct MixedBatch {
  Tensor inputs;                  // share * inputs + (1 - share) * other inputs
  Tensor targets, other_targets;  // i64 [k]
  double share = 1;               // on [0, 1]
};

/// Mixes a batch. batch.inputs: f32 [k, ...] on the CPU; targets: [k, ...]. The share is drawn from
/// Beta(alpha, alpha), once per batch; alpha 0 mixes nothing. The others are a permutation of the
/// batch. With random = key.generator_for(step) a step does not depend on steps before it. Throws
/// ShapeError, DTypeError or DeviceError for other batches, UsageError for an alpha below 0 or not
/// finite.
MixedBatch mixup(const Batch& batch, double alpha, Generator& random);

/// Draws from Beta(alpha, alpha): by Jöhnk 1964, in logarithms, for alpha below 1, otherwise by two
/// gamma draws (Marsaglia and Tsang 2000). Throws UsageError unless alpha is positive and finite.
double symmetric_beta(double alpha, Generator& random);

}  // namespace halftone::data
