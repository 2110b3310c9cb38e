// Convolutions, as torch.nn.Conv1d, Conv2d and ConvTranspose2d with zero padding: weight [out, in /
// groups, kernel...] (transposed: [in, out / groups, kernel...]), the same first values. Images are
// logical NCHW.
#pragma once

#include <concepts>

#include <halftone/autograd/ops.h>
#include <halftone/nn/arguments.h>
#include <halftone/nn/module.h>

namespace halftone::nn {

struct Conv1dOptions {
  int64_t stride = 1;
  ConvPadding padding = 0;  // or "same", "valid"
  int64_t dilation = 1, groups = 1;
  bool bias = true;
};
struct Conv2dOptions {
  Pair stride = 1;
  ConvPadding padding = 0;  // or "same", "valid"
  Pair dilation = 1;
  int64_t groups = 1;
  bool bias = true;
};
struct ConvTranspose2dOptions {
  Pair stride = 1, padding = 0, output_padding = 0, dilation = 1;
  int64_t groups = 1;
  bool bias = true;
};

struct Conv1d final : Layer {
  Parameter weight, bias;
  halftone::Conv1dOptions options;
  Conv1d(int64_t in_channels, int64_t out_channels, int64_t kernel, Conv1dOptions options = {});
  template <std::integral Stride, class... More>
  Conv1d(int64_t, int64_t, int64_t, Stride, More...) : Conv1d(1, 1, 1) {
    static_assert(
        detail::positional<Stride>,
        "name what follows the kernel: Conv1d(in, out, kernel, {.stride = 1, .padding = 1})");
  }
  Tensor forward(const Tensor& x) const override { return conv1d(x, weight, bias, options); }
  void describe(Fields& field) override { field("weight", weight), field("bias", bias); }
};

struct Conv2d final : Layer {
  Parameter weight, bias;
  halftone::Conv2dOptions options;
  Conv2d(int64_t in_channels, int64_t out_channels, Pair kernel, Conv2dOptions options = {});
  template <std::integral Stride, class... More>
  Conv2d(int64_t, int64_t, Pair, Stride, More...) : Conv2d(1, 1, 1) {
    static_assert(
        detail::positional<Stride>,
        "name what follows the kernel: Conv2d(in, out, kernel, {.stride = 1, .padding = 1})");
  }
  Tensor forward(const Tensor& x) const override { return conv2d(x, weight, bias, options); }
  void describe(Fields& field) override { field("weight", weight), field("bias", bias); }
};

struct ConvTranspose2d final : Layer {
  Parameter weight, bias;
  halftone::ConvTranspose2dOptions options;
  ConvTranspose2d(int64_t in_channels, int64_t out_channels, Pair kernel,
                  ConvTranspose2dOptions options = {});
  template <std::integral Stride, class... More>
  ConvTranspose2d(int64_t, int64_t, Pair, Stride, More...) : ConvTranspose2d(1, 1, 1) {
    static_assert(detail::positional<Stride>,
                  "name what follows the kernel: ConvTranspose2d(in, out, kernel, {.stride = 1, "
                  ".padding = 1})");
  }
  Tensor forward(const Tensor& x) const override {
    return conv_transpose2d(x, weight, bias, options);
  }
  void describe(Fields& field) override { field("weight", weight), field("bias", bias); }
};

}  // namespace halftone::nn
