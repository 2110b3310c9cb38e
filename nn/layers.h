// Activation functions as layers, for use in Sequential. The formulas are in
// core/formulas.h.
#pragma once

#include <string_view>

#include <halftone/autograd/ops.h>
#include <halftone/core/error.h>
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
/// As torch.nn.GELU(approximate): exact by default ("none", gelu_erf()), "tanh" is the form of
/// GPT-2 (gelu()). Throws UsageError for other names.
struct Gelu final : StatelessLayer {
  bool uses_tanh;
  explicit Gelu(std::string_view approximate = "none") : uses_tanh(approximate == "tanh") {
    if (!uses_tanh && approximate != "none")
      fail<UsageError>("Gelu", "approximate is \"", approximate,
                       "\". Use \"none\" for the exact form, or \"tanh\".");
  }
  Tensor forward(const Tensor& x) const override { return uses_tanh ? gelu(x) : gelu_erf(x); }
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
