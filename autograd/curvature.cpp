// The gradient is computed once with its history; each product is one backward pass through that.
#include <halftone/autograd/curvature.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include <halftone/autograd/engine.h>
#include <halftone/autograd/ops.h>

namespace halftone::autograd {

namespace {

void check_vectors(std::string_view op, const std::vector<Tensor>& inputs,
                   const std::vector<Tensor>& v) {
  if (v.size() != inputs.size())
    fail<UsageError>(op, v.size(), " vectors for ", inputs.size(), " inputs. Give one per input.");
  for (std::size_t i = 0; i < v.size(); ++i) {
    check::defined(op, "an input", inputs[i]);
    check::defined(op, "a vector", v[i]);
    if (v[i].shape() != inputs[i].shape() || v[i].dtype() != inputs[i].dtype())
      fail<ShapeError>(op, "vector ", i, " is ", described(v[i]), ", the input is ",
                       described(inputs[i]), ". They must agree.");
  }
}

/// Returns the gradients of those outputs that have history, weighted; zeros where there are none.
std::vector<Tensor> products(const std::vector<Tensor>& outputs, const std::vector<Tensor>& weights,
                             const std::vector<Tensor>& inputs) {
  GradOptions options{.retain_graph = true, .allow_unused = true};
  std::vector<Tensor> recorded, result(inputs.size());
  for (std::size_t i = 0; i < outputs.size(); ++i)
    if (outputs[i].defined() && outputs[i].requires_grad())
      recorded.push_back(outputs[i]), options.grad_outputs.push_back(weights[i]);
  if (!recorded.empty()) result = grad(recorded, inputs, options);
  for (std::size_t i = 0; i < inputs.size(); ++i)
    result[i] = result[i].defined() ? result[i].detach() : zeros_like(inputs[i]);
  return result;
}

/// The Hessian of a loss, as a function of vectors.
class Hessian {
 public:
  Hessian(std::string_view op, const Tensor& loss, std::vector<Tensor> inputs)
      : inputs_(std::move(inputs)) {
    if (inputs_.empty()) fail<UsageError>(op, "got no inputs. Name those to differentiate by.");
    gradients_ = grad(std::span(&loss, 1), inputs_, {.allow_unused = true, .create_graph = true});
  }
  std::vector<Tensor> times(const std::vector<Tensor>& v) const {
    return products(gradients_, v, inputs_);
  }

 private:
  std::vector<Tensor> inputs_, gradients_;
};

double dot_of(const Tensor& a, const Tensor& b) { return sum(cast(a, f64) * cast(b, f64)).item(); }
double dot_of(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  double total = 0;
  for (std::size_t i = 0; i < a.size(); ++i) total += dot_of(a[i], b[i]);
  return total;
}

std::vector<Tensor> random_signs(const std::vector<Tensor>& like) {
  std::vector<Tensor> v;
  for (const Tensor& x : like)
    v.push_back(cast(randint(0, 2, x.shape(), i64, x.device()) * 2 - 1, x.dtype()));
  return v;
}

/// Returns the number of standard errors on each side of an interval with this confidence, for
/// `freedom` + 1 samples: the normal quantile (by bisection of erf), with Cornish and Fisher's
/// correction for few samples.
double interval_width(double confidence, int64_t freedom) {
  double low = 0, high = 40;
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2;
    (elementary::erf(middle / std::sqrt(2.0)) < confidence ? low : high) = middle;
  }
  const double z = low, z2 = z * z, n = double(freedom);
  return z * (1 + (z2 + 1) / (4 * n) + ((5 * z2 + 16) * z2 + 3) / (96 * n * n) +
              (((3 * z2 + 19) * z2 + 17) * z2 - 15) / (384 * n * n * n));
}

}  // namespace

std::vector<Tensor> hessian_vector_product(const Tensor& loss, const std::vector<Tensor>& inputs,
                                           const std::vector<Tensor>& v) {
  check_vectors("hessian_vector_product", inputs, v);
  return Hessian("hessian_vector_product", loss, inputs).times(v);
}

std::vector<Tensor> jacobian_vector_product(const std::vector<Tensor>& outputs,
                                            const std::vector<Tensor>& inputs,
                                            const std::vector<Tensor>& v) {
  check_vectors("jacobian_vector_product", inputs, v);
  GradOptions options{.allow_unused = true, .create_graph = true};
  for (const Tensor& y : outputs) {
    check::defined("jacobian_vector_product", "an output", y);
    options.grad_outputs.push_back(zeros_like(y).set_requires_grad());
  }
  const std::vector<Tensor> seeds = options.grad_outputs;
  return products(grad(outputs, inputs, options), v, seeds);
}

std::vector<TraceEstimate> hutchinson_trace(const Tensor& loss,
                                            const std::vector<Tensor>& parameters,
                                            const TraceOptions& options) {
  const std::string_view op = "hutchinson_trace";
  if (options.samples < 2)
    fail<UsageError>(op, "samples is ", options.samples, ". An interval needs at least 2.");
  if (!(options.confidence > 0 && options.confidence < 1))
    fail<UsageError>(op, "confidence is ", options.confidence, ". It must be between 0 and 1.");
  const Hessian hessian(op, loss, parameters);
  const NoGrad no_grad;
  std::vector<double> means(parameters.size(), 0.0), squares(parameters.size(), 0.0);
  for (int64_t s = 0; s < options.samples; ++s) {
    const std::vector<Tensor> v = random_signs(parameters), product = hessian.times(v);
    for (std::size_t i = 0; i < parameters.size(); ++i) {  // Welford's mean and squared distances
      const double value = dot_of(v[i], product[i]), distance = value - means[i];
      means[i] += distance / double(s + 1);
      squares[i] += distance * (value - means[i]);
    }
  }
  const double n = double(options.samples);
  const double width = interval_width(options.confidence, options.samples - 1);
  std::vector<TraceEstimate> estimates;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const double error = width * std::sqrt(squares[i] / (n - 1) / n);
    estimates.push_back({.trace = means[i], .low = means[i] - error, .high = means[i] + error});
  }
  return estimates;
}

Eigenvalue largest_hessian_eigenvalue(const Tensor& loss, const std::vector<Tensor>& parameters,
                                      const EigenvalueOptions& options) {
  const std::string_view op = "largest_hessian_eigenvalue";
  if (options.max_steps < 1)
    fail<UsageError>(op, "max_steps is ", options.max_steps, ". Allow at least 1.");
  const Hessian hessian(op, loss, parameters);
  const NoGrad no_grad;
  Eigenvalue result{.vector = {}};
  for (const Tensor& x : parameters)
    result.vector.push_back(randn(x.shape(), x.dtype(), x.device()));
  const auto scale = [](std::vector<Tensor>& v, double factor) {
    for (Tensor& x : v) x = x * factor;
  };
  scale(result.vector, 1 / std::sqrt(dot_of(result.vector, result.vector)));
  while (result.steps < options.max_steps) {
    std::vector<Tensor> product = hessian.times(result.vector);
    ++result.steps;
    const double length2 = dot_of(product, product), unit2 = dot_of(result.vector, result.vector);
    result.value = dot_of(result.vector, product) / unit2;
    if (length2 == 0) {  // the Hessian is 0, at least on this vector
      result.residual = 0;
      break;
    }
    double distance2 = 0;
    for (std::size_t i = 0; i < product.size(); ++i) {
      const Tensor distance = cast(product[i], f64) - cast(result.vector[i], f64) * result.value;
      distance2 += dot_of(distance, distance);
    }
    result.residual = std::sqrt(distance2 / unit2) / std::abs(result.value);
    if (result.residual <= options.tolerance || !std::isfinite(result.value)) break;
    scale(product, 1 / std::sqrt(length2));
    result.vector = std::move(product);
  }
  return result;
}

}  // namespace halftone::autograd
