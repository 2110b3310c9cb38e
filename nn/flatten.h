// Merges dimensions start..end into one; by default all but the first, which counts the samples. As
// torch.nn.Flatten.
#pragma once

#include <halftone/autograd/ops.h>
#include <halftone/nn/module.h>

namespace halftone::nn {

struct Flatten final : StatelessLayer {
  int start_dim, end_dim;
  explicit Flatten(int start = 1, int end = -1) : start_dim(start), end_dim(end) {}
  Tensor forward(const Tensor& x) const override { return flatten(x, start_dim, end_dim); }
};

}  // namespace halftone::nn
