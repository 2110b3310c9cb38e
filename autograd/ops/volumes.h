// Operations on volumes, [n, c, d, h, w] in NDHWC memory, composed of those on images: a
// convolution is one of images whose channels are the frames under its window, and a pool is one
// over frames and one over depths. Policies see the operations on images.
#pragma once

#include <optional>

#include <halftone/autograd/ops/images.h>

namespace halftone {

/// Depth, height and width; one number sets all.
struct Triple {
  int64_t depth = 0, height = 0, width = 0;
  constexpr Triple() = default;
  constexpr Triple(int64_t all) : depth(all), height(all), width(all) {}
  constexpr Triple(int64_t d, int64_t h, int64_t w) : depth(d), height(h), width(w) {}
  Pair image() const { return {height, width}; }
};

struct Conv3dOptions {
  Triple stride = 1, padding = 0, dilation = 1;
  int64_t groups = 1;
};

/// x: [n, in, d, h, w], also without n; weight: [out, in / groups, kd, kh, kw]; bias: [out] or
/// undefined. As torch.nn.functional.conv3d. Keeps kd / stride times the bytes of x for backward.
Tensor conv3d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
              const Conv3dOptions& options = {});

struct Pool3dOptions {
  Triple kernel = 2;
  std::optional<Triple> stride{};  // the kernel's size if absent
  Triple padding = 0;
  bool count_include_pad = true;  // for avg_pool3d
  Triple dilation = 1;            // for max_pool3d
  bool ceil_mode = false;         // as in PoolOptions
};

/// As torch.nn.functional's functions of these names; x may lack the batch dimension.
Tensor max_pool3d(const Tensor& x, const Pool3dOptions& options);
Tensor avg_pool3d(const Tensor& x, const Pool3dOptions& options);
Tensor adaptive_avg_pool3d(const Tensor& x, Triple output);
Tensor adaptive_max_pool3d(const Tensor& x, Triple output);

}  // namespace halftone
