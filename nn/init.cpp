// The formulas of torch.nn.init, made of the backend's fill, uniform and normal. Two of them have
// no kernels (truncated normal, orthogonal) and are computed in f64 on the host.
#include <halftone/nn/init.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include <halftone/core/backend.h>
#include <halftone/core/error.h>
#include <halftone/core/factory.h>

namespace halftone::nn::init {
namespace {

/// Random kernels need dense memory; a view with holes is written through a dense copy.
template <class Draw> Tensor fill_random(Tensor x, Draw draw) {
  if (x.numel() == 0) return x;
  Backend& backend = backend_for(x);
  const RandomKey key = default_generator().reserve(uint64_t(x.numel()));
  Tensor dense = x.is_dense() ? x : empty_like(x);
  draw(backend, key, dense);
  if (x.is_dense()) mark_written(x);
  else copy_into(x, dense);
  return x;
}

/// values: row-major, one for each element of x.
Tensor copy_from_host(const std::vector<double>& values, const Tensor& x) {
  copy_into(x, from_vector(values, x.shape(), f64));
  return x;
}

/// Returns the z with Phi(z) = p, by bisection on erfc: 60 halvings of [-9, 9], enough for any
/// double used here.
double normal_quantile(double p) {
  double low = -9, high = 9;
  for (int i = 0; i < 60; ++i) {
    const double middle = 0.5 * (low + high);
    (0.5 * std::erfc(-middle / std::numbers::sqrt2) < p ? low : high) = middle;
  }
  return 0.5 * (low + high);
}

double normal_cdf(double z) { return 0.5 * std::erfc(-z / std::numbers::sqrt2); }

double kaiming_std(const Tensor& x, const KaimingOptions& options) {
  const Fans fans = fans_of(x);
  const double fan = double(options.fan == Fan::in ? fans.in : fans.out);
  return gain_of(options.nonlinearity, options.slope) / std::sqrt(fan);
}

double xavier_std(const Tensor& x, double gain) {
  const Fans fans = fans_of(x);
  return gain * std::sqrt(2.0 / double(fans.in + fans.out));
}

/// U(-bound, bound) has the standard deviation bound / sqrt(3).
Tensor uniform_with_std(const Tensor& x, double std) {
  const double bound = std::sqrt(3.0) * std;
  return uniform(x, -bound, bound);
}

/// Gram-Schmidt on the rows, each projected twice, which makes them orthogonal up to rounding
/// (Kahan, Parlett). rows <= columns.
void orthonormalize_rows(std::vector<double>& q, int64_t rows, int64_t columns) {
  const auto dot = [&](const double* a, const double* b) {
    double sum = 0;
    for (int64_t j = 0; j < columns; ++j) sum += a[j] * b[j];
    return sum;
  };
  for (int64_t i = 0; i < rows; ++i) {
    double* row = q.data() + i * columns;
    for (int pass = 0; pass < 2; ++pass) {
      for (int64_t k = 0; k < i; ++k) {
        const double* before = q.data() + k * columns;
        const double projection = dot(row, before);
        for (int64_t j = 0; j < columns; ++j) row[j] -= projection * before[j];
      }
    }
    const double length = std::sqrt(dot(row, row));
    for (int64_t j = 0; j < columns; ++j) row[j] /= length;
  }
}

}  // namespace

Tensor constant(const Tensor& x, double value) {
  fill_with(x, value);
  return x;
}

Tensor zeros(const Tensor& x) { return constant(x, 0); }
Tensor ones(const Tensor& x) { return constant(x, 1); }

Tensor uniform(const Tensor& x, double low, double high) {
  if (!(low <= high))
    fail<UsageError>("init.uniform", "low ", low, " is above high ", high, ". Swap them.");
  return fill_random(
      x, [&](Backend& backend, RandomKey key, Tensor& y) { backend.uniform(low, high, key, y); });
}

Tensor normal(const Tensor& x, double mean, double std) {
  if (!(std >= 0)) fail<UsageError>("init.normal", "std ", std, " is negative. Use 0 or more.");
  return fill_random(
      x, [&](Backend& backend, RandomKey key, Tensor& y) { backend.normal(mean, std, key, y); });
}

Tensor trunc_normal(const Tensor& x, double mean, double std, double low, double high) {
  if (!(std > 0))
    fail<UsageError>("init.trunc_normal", "std ", std, " is not positive. Use more than 0.");
  if (!(low <= high))
    fail<UsageError>("init.trunc_normal", "low ", low, " is above high ", high, ". Swap them.");
  // A uniform number between Phi(low) and Phi(high), mapped by the inverse of Phi.
  const double from = normal_cdf((low - mean) / std), to = normal_cdf((high - mean) / std);
  std::vector<double> values = uniform(empty({x.numel()}, f64), from, to).to_vector<double>();
  for (double& value : values) value = std::clamp(mean + std * normal_quantile(value), low, high);
  return copy_from_host(values, x);
}

Fans fans_of(const Tensor& weight) {
  if (weight.rank() < 2)
    fail<ShapeError>("init", "fans need a weight [out, in, ...], got ", described(weight),
                     ". Use uniform or normal for vectors.");
  int64_t window = 1;
  for (int i = 2; i < weight.rank(); ++i) window *= weight.shape()[i];
  return {weight.shape()[1] * window, weight.shape()[0] * window};
}

double gain_of(Nonlinearity nonlinearity, double slope) {
  switch (nonlinearity) {
    case Nonlinearity::tanh: return 5.0 / 3;
    case Nonlinearity::relu: return std::numbers::sqrt2;
    case Nonlinearity::leaky_relu: return std::sqrt(2 / (1 + slope * slope));
    case Nonlinearity::selu: return 0.75;
    default: return 1;
  }
}

Tensor xavier_uniform(const Tensor& x, double gain) {
  return uniform_with_std(x, xavier_std(x, gain));
}
Tensor xavier_normal(const Tensor& x, double gain) { return normal(x, 0, xavier_std(x, gain)); }

Tensor kaiming_uniform(const Tensor& x, KaimingOptions options) {
  return uniform_with_std(x, kaiming_std(x, options));
}
Tensor kaiming_normal(const Tensor& x, KaimingOptions options) {
  return normal(x, 0, kaiming_std(x, options));
}

Tensor orthogonal(const Tensor& x, double gain) {
  if (x.rank() < 2)
    fail<ShapeError>("init.orthogonal", "needs a matrix or more, got ", described(x),
                     ". Use normal for vectors.");
  if (x.numel() == 0) return x;
  const int64_t rows = x.shape()[0], columns = x.numel() / rows;
  const int64_t fewer = std::min(rows, columns), more = std::max(rows, columns);
  std::vector<double> q = normal(empty({fewer * more}, f64)).to_vector<double>();
  orthonormalize_rows(q, fewer, more);
  std::vector<double> values(q.size());  // q, or its transpose for a tall x
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j)
      values[std::size_t(i * columns + j)] =
          gain * q[std::size_t(rows <= columns ? i * more + j : j * more + i)];
  }
  return copy_from_host(values, x);
}

void layer_default(const Tensor& weight, const Tensor& bias) {
  kaiming_uniform(weight,
                  {.slope = std::sqrt(5.0)});  // gain sqrt(1/3): the bound is 1 / sqrt(fan_in)
  if (!bias.defined()) return;
  const double bound = 1 / std::sqrt(double(fans_of(weight).in));
  uniform(bias, -bound, bound);
}

}  // namespace halftone::nn::init
