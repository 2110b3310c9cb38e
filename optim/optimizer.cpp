// Lists of gradients, the part common to all optimizers, and clipping.
#include <halftone/optim/optimizer.h>

#include <cmath>
#include <limits>

#include <halftone/autograd/ops.h>
#include <halftone/autograd/slots.h>
#include <halftone/core/backend.h>
#include <halftone/core/error.h>
#include <halftone/core/factory.h>

namespace halftone::optim {

void scale_gradients(std::span<Tensor> gradients, const Tensor& factor) {
  for_each_device(gradients, [&](std::span<Tensor> some, Backend& backend) {
    backend.scale_all(some, factor.to(some[0].device()));
  });
}

namespace {
Tensor euclidean_norm(std::span<const Tensor> gradients) {
  Tensor squares;
  for_each_device(gradients, [&](std::span<const Tensor> some, Backend& backend) {
    const Tensor here = empty({}, f64, some[0].device());
    Tensor sum = here;
    backend.sum_of_squares(some, sum);
    squares = squares.defined() ? squares + here.to(squares.device()) : here;
  });
  return sqrt(squares);
}
}  // namespace

Tensor norm_of(std::span<const Tensor> gradients, double p) {
  if (!(p > 0))
    fail<UsageError>("clip_grad_norm", "norm_type is ", p, ". Use a positive number, or infinity.");
  if (gradients.empty()) return zeros({}, f64);
  const NoGrad no_grad;
  const CasterScope no_cast(nullptr);
  if (p == 2) return euclidean_norm(gradients);
  const bool largest = std::isinf(p);
  Tensor total;
  for (const Tensor& gradient : gradients) {
    if (gradient.numel() == 0) continue;
    const Tensor sizes = abs(cast(gradient, f64));
    const Tensor own = largest ? max(sizes) : sum(p == 1 ? sizes : pow(sizes, p));
    const Tensor here = total.defined() ? own.to(total.device()) : own;
    total = !total.defined() ? here : largest ? maximum(total, here) : total + here;
  }
  if (!total.defined()) return zeros({}, f64);
  return largest || p == 1 ? total : pow(total, 1 / p);
}

// The common part of every optimizer: gradients, computed from the groups.

std::vector<Tensor> gradients_of(std::span<const Tensor> parameters) {
  std::vector<Tensor> result;
  for (const Tensor& parameter : parameters) {
    if (Tensor gradient = parameter.grad(); gradient.defined())
      result.push_back(std::move(gradient));
  }
  return result;
}

std::vector<Tensor> Optimizer::parameters() const {
  auto& self =
      const_cast<Optimizer&>(*this);  // group_parameters() gives write access; this only reads
  std::vector<Tensor> result;
  for (int group = 0; group < group_count(); ++group) {
    const std::span<Tensor> parameters = self.group_parameters(group);
    result.insert(result.end(), parameters.begin(), parameters.end());
  }
  return result;
}

std::vector<Tensor> Optimizer::gradients() const { return gradients_of(parameters()); }

void Optimizer::require_unscaled(std::string_view name, const StepControl& control) const {
  if (control.knows_scale || control.factor.defined() || control.skip.defined()) return;
  auto& self = const_cast<Optimizer&>(*this);  // as in parameters()
  std::size_t index = 0;
  for (int group = 0; group < group_count(); ++group)
    for (const Tensor& parameter : self.group_parameters(group)) {
      if (has_scaled_gradient(parameter)) refuse_scaled_gradient(name, index, parameter);
      ++index;
    }
}

void refuse_scaled_gradient(std::string_view name, std::size_t index, const Tensor& parameter) {
  fail<UsageError>(
      name, "the gradient of parameter ", index, ", ", described(parameter),
      ", is of a loss that was multiplied by a loss scale, and step() would take it as "
      "it is. Call training.step(), or scaler.step(optimizer), or "
      "scaler.unscale(optimizer) first.");
}

bool Optimizer::begin_step(const StepControl& control) const {
  require_unscaled("Optimizer.step", control);
  if (control.skip.defined() && control.skip.item() != 0) return false;
  if (!control.factor.defined()) return true;
  std::vector<Tensor> all = gradients();
  scale_gradients(all, control.factor);
  return true;
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): overrides that use it keep it
bool Optimizer::set_weight_keeper(std::shared_ptr<WeightKeeper>) { return false; }
bool Optimizer::set_state_formats(const StateFormats&) { return false; }

std::span<const std::pair<std::string_view, StateFormat>> named_state_formats() {
  static const std::vector<std::pair<std::string_view, StateFormat>> all = [] {
    std::vector<std::pair<std::string_view, StateFormat>> formats{
        {"f32", f32}, {"bf16", bf16}, {"f16", f16}, {"f64", f64}};
    for (std::size_t form = 1; form < words_of<CodedForm>.size(); ++form)
      formats.emplace_back(words_of<CodedForm>[form], CodedForm(form));
    return formats;
  }();
  return all;
}

std::ostream& operator<<(std::ostream& out, StateFormat format) {
  return format.coded() ? out << halftone::name(format.form) : out << format.dtype;
}

void Optimizer::zero_grad(bool set_to_none) {
  for (int group = 0; group < group_count(); ++group) {
    for (Tensor& parameter : group_parameters(group)) {
      Tensor gradient = parameter.grad();
      if (!gradient.defined()) continue;
      if (set_to_none) {
        parameter.set_grad(Tensor{});
      } else {
        fill_with(gradient, 0);
      }
    }
  }
}

void Optimizer::set_lr(double lr) {
  for (int group = 0; group < group_count(); ++group) set_lr(lr, group);
}

// Computes the factor and scales by it, without reading a value back to the host.

namespace {

template <class F> void apply_in_place(const F& formula, Tensor& x) {
  backend_for(x).unary(call_of<UnaryFormulas>(formula), x, x);
}

/// Returns min(1, max_norm / (norm + 1e-6)) of an f64 norm, in f32; NaN stays NaN.
Tensor clip_factor(const Tensor& norm, double max_norm) {
  Tensor denominator = norm.clone();
  apply_in_place(formula::Affine{1, 1e-6}, denominator);
  Tensor factor = full({}, max_norm, f64, norm.device());
  backend_for(norm).binary(call_of<BinaryFormulas>(formula::Div{}), factor, denominator, factor);
  apply_in_place(formula::Clamp{-std::numeric_limits<double>::infinity(), 1}, factor);
  return converted(factor, f32);
}

}  // namespace

Tensor clip_gradients_norm(std::span<Tensor> gradients, double max_norm, ClipOptions options) {
  if (!(max_norm >= 0))
    fail<UsageError>("clip_grad_norm", "max_norm is ", max_norm, ". Use 0 or more.");
  if (gradients.empty()) return zeros({});
  const Tensor norm = norm_of(gradients, options.norm_type);
  if (options.error_if_nonfinite) {
    if (const double value = norm.item(); !std::isfinite(value))
      fail<UsageError>("clip_grad_norm", "the norm of the gradients is ", value,
                       ". Unscale them first, or turn error_if_nonfinite off.");
  }
  scale_gradients(gradients, clip_factor(norm, max_norm));
  return converted(norm, f32);
}

Tensor clip_grad_norm(const std::vector<Tensor>& parameters, double max_norm, ClipOptions options) {
  std::vector<Tensor> gradients = gradients_of(parameters);
  return clip_gradients_norm(gradients, max_norm, options);
}

void clip_gradients_value(std::span<Tensor> gradients, double limit) {
  if (!(limit >= 0)) fail<UsageError>("clip_grad_value", "limit is ", limit, ". Use 0 or more.");
  for (Tensor& gradient : gradients) {
    apply_in_place(formula::Clamp{-limit, limit}, gradient);
    mark_written(gradient);
  }
}

void clip_grad_value(const std::vector<Tensor>& parameters, double limit) {
  std::vector<Tensor> gradients = gradients_of(parameters);
  clip_gradients_value(gradients, limit);
}

}  // namespace halftone::optim
