// The route of one process.
#include <halftone/amp/gradient_route.h>

#include <halftone/amp/training_core.h>
#include <halftone/amp/weight_storage.h>
#include <halftone/autograd/ops/cast.h>
#include <halftone/optim/optimizer.h>

namespace halftone::amp {

void GradientRoute::rescale(const Tensor& old) { core_.scaler.rescale(core_.stepping(), old); }

void GradientRoute::end_backward() {
  if (core_.masters && core_.strategy.accumulate_in_f32) core_.masters->collect();
}

void GradientRoute::no_backward() {
  fail<UsageError>("Training.no_backward",
                   "this training is not part of a group. Call train_together() first, or leave it "
                   "out.");
}

void GradientRoute::begin_step() {
  if (core_.strategy.wire != distributed::WireFormat{})
    fail<UsageError>("Training.step", "under ", core_.strategy.name, " gradients travel in ",
                     name(core_.strategy.wire),
                     " to a sum, and here nothing is summed up. Call train_together() before the "
                     "first step, also for one process.");
}

Tensor GradientRoute::norm(double norm_type) const {
  return optim::norm_of(core_.stepping().gradients(), norm_type);
}

std::vector<Tensor> GradientRoute::parameters() const {
  return core_.masters ? core_.masters->parameters() : core_.optimizer.parameters();
}

Tensor GradientRoute::weight(std::size_t index) const {
  const Tensor parameter = parameters().at(index);
  if (!is_short_float(parameter)) return parameter.detach();
  return core_.masters ? core_.masters->weight(index) : Cast::converted(parameter, f32);
}

void GradientRoute::on_rank_0(std::string_view, const std::function<void()>& f) const { f(); }

void GradientRoute::write_state(const std::function<void(const TensorSource&)>& write) const {
  const optim::NamedTensors own = core_.state();
  write(source_of(own));
}

optim::NamedTensors GradientRoute::part_of_state(
    const std::function<optim::NamedTensors()>& make) const {
  return make();
}

}  // namespace halftone::amp
