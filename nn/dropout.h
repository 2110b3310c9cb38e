// While training, zeroes each element with probability p and divides the rest by 1 - p (Srivastava
// et al. 2014); in evaluation the identity. As torch.nn.Dropout.
#pragma once

#include <halftone/autograd/ops.h>
#include <halftone/nn/module.h>

namespace halftone::nn {

struct Dropout final : StatelessLayer {
  double p;
  explicit Dropout(double probability = 0.5) : p(probability) {
    if (!(p >= 0 && p <= 1))
      fail<UsageError>("Dropout", "probability ", p,
                       " is not between 0 and 1. Choose one that is.");
  }
  Tensor forward(const Tensor& x) const override { return dropout(x, p, training); }
};

}  // namespace halftone::nn
