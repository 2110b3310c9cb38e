// First values of parameters, with the formulas, names and defaults of torch.nn.init. All functions
// write into the given tensor (a handle, so const), unrecorded, and return it. They draw from the
// default generator (manual_seed). Glorot & Bengio 2010 (xavier), He et al. 2015 (kaiming), Saxe et
// al. 2013 (orthogonal).
#pragma once

#include <cstdint>

#include <halftone/core/tensor.h>

namespace halftone::nn::init {

Tensor constant(const Tensor& x, double value);
Tensor zeros(const Tensor& x);
Tensor ones(const Tensor& x);
Tensor uniform(const Tensor& x, double low = 0, double high = 1);
Tensor normal(const Tensor& x, double mean = 0, double std = 1);
/// Draws normal values, restricted to [low, high] (absolute bounds, not multiples of std).
Tensor trunc_normal(const Tensor& x, double mean = 0, double std = 1, double low = -2,
                    double high = 2);

/// The number of inputs of one output, and of outputs of one input, for weights [out, in,
/// kernel...].
struct Fans {
  int64_t in, out;
};
Fans fans_of(const Tensor& weight);

enum class Nonlinearity { linear, sigmoid, tanh, relu, leaky_relu, selu };
/// Returns the factor by which weights must grow to compensate the nonlinearity; `slope` is
/// leaky_relu's.
double gain_of(Nonlinearity nonlinearity, double slope = 0.01);

/// Variance gain^2 * 2 / (fan_in + fan_out).
Tensor xavier_uniform(const Tensor& x, double gain = 1);
Tensor xavier_normal(const Tensor& x, double gain = 1);

enum class Fan { in, out };
struct KaimingOptions {
  double slope = 0;  // slope of the leaky_relu that follows; PyTorch's `a`
  Fan fan = Fan::in;
  Nonlinearity nonlinearity = Nonlinearity::leaky_relu;
};
/// Variance gain^2 / fan.
Tensor kaiming_uniform(const Tensor& x, KaimingOptions options = {});
Tensor kaiming_normal(const Tensor& x, KaimingOptions options = {});

/// Fills x, seen as [size(0), rest], with orthonormal rows or columns, whichever are fewer.
Tensor orthogonal(const Tensor& x, double gain = 1);

/// The first values of PyTorch's Linear and Conv: weight and bias uniform on +-1/sqrt(fan_in). bias
/// may be undefined.
void layer_default(const Tensor& weight, const Tensor& bias);

}  // namespace halftone::nn::init
