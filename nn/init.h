// First values of parameters, with the formulas, names and defaults of torch.nn.init. All write
// into the tensor they are given (a handle, so const), unrecorded, and return it. They draw from
// the default generator (manual_seed). Glorot & Bengio 2010 (xavier), He et al. 2015 (kaiming),
// Saxe et al. 2013 (orthogonal).
#pragma once

#include <cstdint>

#include <halftone/core/tensor.h>

namespace halftone::nn::init {

Tensor constant(const Tensor& x, double value);
Tensor zeros(const Tensor& x);
Tensor ones(const Tensor& x);
Tensor uniform(const Tensor& x, double low = 0, double high = 1);
Tensor normal(const Tensor& x, double mean = 0, double std = 1);
/// Normal values, conditioned to lie in [low, high] (absolute bounds, not multiples of std).
Tensor trunc_normal(const Tensor& x, double mean = 0, double std = 1, double low = -2,
                    double high = 2);

/// How many numbers feed one output, and how many outputs one input feeds, for weights [out, in,
/// kernel...].
struct Fans {
  int64_t in, out;
};
Fans fans_of(const Tensor& weight);

enum class Nonlinearity { linear, sigmoid, tanh, relu, leaky_relu, selu };
/// By how much weights must grow to make up for what the nonlinearity takes away; `slope` is
/// leaky_relu's.
double gain_of(Nonlinearity nonlinearity, double slope = 0.01);

/// Variance gain^2 * 2 / (fan_in + fan_out).
Tensor xavier_uniform(const Tensor& x, double gain = 1);
Tensor xavier_normal(const Tensor& x, double gain = 1);

enum class Fan { in, out };
struct KaimingOptions {
  double slope = 0;  // of the leaky_relu that follows; PyTorch's `a`
  Fan fan = Fan::in;
  Nonlinearity nonlinearity = Nonlinearity::leaky_relu;
};
/// Variance gain^2 / fan.
Tensor kaiming_uniform(const Tensor& x, KaimingOptions options = {});
Tensor kaiming_normal(const Tensor& x, KaimingOptions options = {});

/// Orthonormal rows or columns, whichever are fewer, of x seen as [size(0), rest].
Tensor orthogonal(const Tensor& x, double gain = 1);

/// What PyTorch's Linear and Conv start from: weight and bias uniform on +-1/sqrt(fan_in). bias may
/// be undefined.
void layer_default(const Tensor& weight, const Tensor& bias);

}  // namespace halftone::nn::init
