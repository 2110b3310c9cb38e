// Activation functions as layers, so that Sequential can hold them. The formulas are in
// core/formulas.h.
#pragma once

#include <halftone/autograd/ops.h>
#include <halftone/nn/module.h>

namespace halftone::nn {

struct Relu final : StatelessLayer {
  Tensor forward(const Tensor& x) const override { return relu(x); }
};
struct LeakyRelu final : StatelessLayer {
  double slope;
  explicit LeakyRelu(double negative_slope = 0.01) : slope(negative_slope) {}
  Tensor forward(const Tensor& x) const override { return leaky_relu(x, slope); }
};
/// The tanh form; torch.nn.GELU(approximate="tanh").
struct Gelu final : StatelessLayer {
  Tensor forward(const Tensor& x) const override { return gelu(x); }
};
/// The exact form; torch.nn.GELU().
struct GeluErf final : StatelessLayer {
  Tensor forward(const Tensor& x) const override { return gelu_erf(x); }
};
struct Silu final : StatelessLayer {
  Tensor forward(const Tensor& x) const override { return silu(x); }
};
struct Elu final : StatelessLayer {
  double alpha;
  explicit Elu(double scale = 1) : alpha(scale) {}
  Tensor forward(const Tensor& x) const override { return elu(x, alpha); }
};
struct Mish final : StatelessLayer {
  Tensor forward(const Tensor& x) const override { return mish(x); }
};
struct Hardswish final : StatelessLayer {
  Tensor forward(const Tensor& x) const override { return hardswish(x); }
};
struct Tanh final : StatelessLayer {
  Tensor forward(const Tensor& x) const override { return halftone::tanh(x); }
};
struct Sigmoid final : StatelessLayer {
  Tensor forward(const Tensor& x) const override { return sigmoid(x); }
};
struct Softplus final : StatelessLayer {
  double beta, threshold;
  explicit Softplus(double sharpness = 1, double linear_above = 20)
      : beta(sharpness), threshold(linear_above) {}
  Tensor forward(const Tensor& x) const override { return softplus(x, beta, threshold); }
};

}  // namespace halftone::nn
