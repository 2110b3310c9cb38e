// The common part of every optimizer: gradients, computed from the groups.
#include <halftone/optim/optimizer.h>

#include <halftone/autograd/slots.h>
#include <halftone/core/backend.h>
#include <halftone/core/error.h>
#include <halftone/optim/gradient_lists.h>

namespace halftone::optim {

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
bool Optimizer::set_default_state_dtype(DType) { return false; }

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

}  // namespace halftone::optim
