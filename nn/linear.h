// y = x W^T + b over the last dimension of x. As torch.nn.Linear: weight [out, in], the same first
// values.
#pragma once

#include <concepts>

#include <halftone/autograd/ops.h>
#include <halftone/nn/module.h>

namespace halftone::nn {

struct LinearOptions {
  bool bias = true;
};

struct Linear final : Layer {
  Parameter weight, bias;
  Linear(int64_t in_features, int64_t out_features, LinearOptions options = {});
  /// bias as the third argument, as in PyTorch
  template <std::same_as<bool> Bias>
  Linear(int64_t in_features, int64_t out_features, Bias with_bias)
      : Linear(in_features, out_features, LinearOptions{.bias = with_bias}) {}
  Tensor forward(const Tensor& x) const override { return linear(x, weight, bias); }
  void describe(Fields& field) override { field("weight", weight), field("bias", bias); }
};

}  // namespace halftone::nn
