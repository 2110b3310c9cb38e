// Contracts the function's output with a fixed random-looking tensor v. The gradient of that scalar
// by each input element is then one number: analytic on one side, a central difference on the
// other.
#include <halftone/autograd/gradcheck.h>

#include <cmath>
#include <sstream>
#include <utility>

#include <halftone/autograd/slots.h>
#include <halftone/core/factory.h>

namespace halftone {

namespace {
std::vector<double> contraction_weights(int64_t count) {
  std::vector<double> v(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = 0.5 + 0.5 * std::sin(1.0 + 2.3 * double(i));
  return v;
}

double contracted(const Tensor& y) {
  const std::vector<double> values = y.to_vector<double>(), v = contraction_weights(y.numel());
  double total = 0;
  for (std::size_t i = 0; i < v.size(); ++i) total += values[i] * v[i];
  return total;
}
}  // namespace

GradcheckResult gradcheck(const std::function<Tensor(const std::vector<Tensor>&)>& function,
                          const std::vector<Tensor>& inputs, const GradcheckOptions& options) {
  std::vector<Tensor> leaves;
  for (const Tensor& x : inputs) {
    if (x.requires_grad() && x.dtype() != f64)
      fail<DTypeError>("gradcheck", "an input that requires a gradient is ", x.dtype(),
                       ". Cast it to f64.");
    leaves.push_back(x.defined() ? x.detach() : x);
    if (x.requires_grad()) leaves.back().set_requires_grad();
  }
  const Tensor y = function(leaves);
  y.backward(from_vector(contraction_weights(y.numel()), y.shape(), f64, y.device()));

  const NoGrad no_grad;
  GradcheckResult result;
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    if (!inputs[k].requires_grad()) continue;
    const Tensor gradient = leaves[k].grad();
    const auto count = std::size_t(inputs[k].numel());
    const auto analytic =
        gradient.defined() ? gradient.to_vector<double>() : std::vector<double>(count, 0.0);
    std::vector<double> values = inputs[k].to_vector<double>();
    const auto probe = [&](std::size_t element, double value) {
      const double before = std::exchange(values[element], value);
      std::vector<Tensor> moved = leaves;
      moved[k] = from_vector(values, inputs[k].shape(), f64, inputs[k].device());
      values[element] = before;
      return contracted(function(moved));
    };
    for (std::size_t i = 0; i < count; ++i) {
      const double numeric =
          (probe(i, values[i] + options.step) - probe(i, values[i] - options.step)) /
          (2 * options.step);
      const double error = std::abs(numeric - analytic[i]);
      result.worst_error = std::max(result.worst_error, error);
      const double bound =
          options.absolute_tolerance + options.relative_tolerance * std::abs(numeric);
      if (error <= bound || !result.passed) continue;
      PlainText text;
      text << "input " << k << ", element " << i << ": analytic " << analytic[i] << ", numeric "
           << numeric;
      result.passed = false, result.message = text.str();
    }
  }
  return result;
}

}  // namespace halftone
