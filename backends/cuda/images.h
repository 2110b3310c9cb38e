// Loops over the pixels of images, and divisions by known numbers.
#pragma once

#include <cstdint>
#include <limits>

#include <halftone/backends/cuda/launch.h>
#include <halftone/backends/cuda/values.h>
#include <halftone/core/language.h>

namespace halftone::cuda {

// Quotient and remainder by a number that is known before a kernel starts, as a multiplication, for
// kernels that split one index into several. Granlund & Montgomery 1994, "Division by invariant
// integers using multiplication".

/// Divides by 1 .. 2^31 - 1.
class Divisor {
 public:
  /// A value of 0, from a tensor without elements, counts as 1.
  explicit Divisor(int64_t value) : value_(value > 0 ? uint32_t(value) : 1) {
    while ((uint64_t(1) << shift_) < value_) ++shift_;
    const uint64_t excess = (uint64_t(1) << shift_) - value_;
    multiplier_ = uint32_t((excess << 32) / value_ + 1);
  }
  struct Parts {
    int64_t quotient;
    int remainder;
  };
  /// Divides a number from 0 to 2^31 - 1.
  HT_HD int quotient(int number) const {
    const uint32_t n = uint32_t(number);
    return int((uint32_t(uint64_t(n) * multiplier_ >> 32) + n) >> shift_);
  }
  /// Divides any number that is not negative.
  HT_HD Parts split(int64_t number) const {
    if (number > std::numeric_limits<int32_t>::max())
      return {number / value_, int(number % value_)};
    const int q = quotient(int(number));
    return {q, int(number) - q * int(value_)};
  }

 private:
  uint32_t value_, multiplier_ = 0, shift_ = 0;
};

// Loops over the pixels of NHWC images: a thread has a pack of neighboring channels of one pixel,
// so that it computes windows and weights once for all of them. Pooling and interpolation use it.

/// All packs of an image tensor, counted in memory order.
struct PackCount {
  int64_t count;
  Divisor packs, columns, rows;

  PackCount(const Tensor& images, int size)
      : count(images.numel() / size),
        packs(images.shape()[1] / size),
        columns(images.shape()[3]),
        rows(images.shape()[2]) {}
  struct Place {
    int64_t image;
    int row, column, pack;
  };
  __device__ Place at(int64_t number) const {
    const auto [pixel, pack] = packs.split(number);
    const auto [line, column] = columns.split(pixel);
    const auto [image, row] = rows.split(line);
    return {image, row, column, pack};
  }
};

/// The packs of an image tensor at a pixel.
template <class T, int size> struct Pixels {
  T* data;
  int64_t height, width, packs;

  explicit Pixels(const Tensor& images)
      : data(images.data<T>()),
        height(images.shape()[2]),
        width(images.shape()[3]),
        packs(images.shape()[1] / size) {}
  /// Returns the number of a pack.
  __device__ int64_t number(int64_t image, int64_t row, int64_t column, int pack) const {
    return ((image * height + row) * width + column) * packs + pack;
  }
  __device__ Pack<std::remove_const_t<T>, size> load(int64_t number) const {
    return reinterpret_cast<const Pack<std::remove_const_t<T>, size>*>(data)[number];
  }
  __device__ void store(int64_t number, const Pack<T, size>& values) const {
    reinterpret_cast<Pack<T, size>*>(data)[number] = values;
  }
  /// Stores each value rounded to T.
  template <class C> __device__ void store_narrow(int64_t number, const C (&values)[size]) const {
    Pack<T, size> pack;
    for (int c = 0; c < size; ++c) pack.values[c] = narrow<T>(values[c]);
    store(number, pack);
  }
};

/// Calls run.operator()<size>(), with packs of `most` channels if the pixels of all tensors consist
/// of whole packs.
template <int most, class Run, class... Rest>
void visit_packs(const Run& run, const Tensor& images, const Rest&... rest) {
  const bool whole =
      images.shape()[1] % most == 0 && begins_aligned(images) && (begins_aligned(rest) && ...);
  if (whole) run.template operator()<most>();
  else run.template operator()<1>();
}

}  // namespace halftone::cuda
