// The stages of an optimizer between two update()s, and who multiplies what when.
#include <halftone/amp/grad_scaler.h>

#include <algorithm>

#include <halftone/autograd/ops.h>

namespace halftone::amp {

GradScaler::GradScaler(const LossScaleOptions& options, ScalerUse use) : enabled_(use.enabled) {
  options.check("GradScaler");
  if (use.losses < 1) fail<UsageError>("GradScaler", "got ", use.losses, " losses. Use 1 or more.");
  scales_.assign(std::size_t(use.losses), LossScale{.options = options});
  overflowed_.assign(scales_.size(), false);
}

std::size_t GradScaler::checked(int which) const {
  if (which < 0 || std::size_t(which) >= scales_.size())
    fail<UsageError>("GradScaler", "there is no loss ", which, " among ", scales_.size(),
                     ". Say how many there are when the scaler is made.");
  return std::size_t(which);
}

double GradScaler::scale_value(int which) const {
  return enabled_ ? double(scales_[checked(which)].scale) : 1.0;
}
Tensor GradScaler::inverse_scale(Device device, int which) const {
  return full({}, double(float(1.0 / scale_value(which))), f32, device);
}

void GradScaler::set_options(const LossScaleOptions& options) {
  LossScaleOptions with_present_scale = options;
  for (const LossScale& s : scales_) {
    with_present_scale.init_scale = double(s.scale);
    with_present_scale.check("GradScaler.set_options");
  }
  for (LossScale& s : scales_) {
    if (s.options.hysteresis != options.hysteresis) s.overflows_left = options.hysteresis;
    s.options = options;
  }
}

// --- forward

Tensor GradScaler::scale(const Tensor& loss, int which) {
  if (!enabled_) return loss;
  const double value = scale_value(which);
  scaled_ = true;
  return mul(loss, full({}, value, f32, loss.device()));
}

std::vector<Tensor> GradScaler::scale(const std::vector<Tensor>& losses) {
  std::vector<Tensor> scaled;
  scaled.reserve(losses.size());
  for (const Tensor& loss : losses) scaled.push_back(scale(loss));
  return scaled;
}

// --- between backward and the step

void GradScaler::require_scaled(std::string_view verb) const {
  if (!scaled_)
    fail<UsageError>(verb, "called before scale(). Call scaler.scale(loss).backward() first.");
}

void GradScaler::check(std::vector<Tensor>& gradients, const Tensor& factor, Progress& progress) {
  for (auto begin = gradients.begin(); begin != gradients.end();) {
    const Device device = begin->device();
    const auto end =
        std::find_if(begin, gradients.end(), [&](const Tensor& g) { return g.device() != device; });
    Tensor found = zeros({}, f32, device);
    const Tensor here = factor.defined() ? factor.to(device) : factor;
    backend_for(device).unscale({begin, end}, here, found);
    if (found.item() != 0) progress.overflowed = true;
    begin = end;
  }
  progress.checked = true;
  if (!progress.overflowed || progress.first_overflow) return;
  for (std::size_t i = 0; i < gradients.size() && !progress.first_overflow; ++i) {
    Tensor found = zeros({}, f32, gradients[i].device());
    backend_for(gradients[i]).unscale({&gradients[i], 1}, {}, found);
    if (found.item() != 0) progress.first_overflow = i;
  }
}

void GradScaler::unscale(optim::Optimizer& optimizer) {
  if (!enabled_) return;
  require_scaled("GradScaler.unscale");
  Progress& progress = progress_[&optimizer];
  if (progress.stage == Stage::unscaled)
    fail<UsageError>("GradScaler.unscale",
                     "called twice for this optimizer since update(). Call it once, after backward "
                     "and before clipping.");
  if (progress.stage == Stage::stepped)
    fail<UsageError>(
        "GradScaler.unscale",
        "called after step() of this optimizer. Call it after backward, before step().");
  std::vector<Tensor> gradients = optimizer.gradients();
  for (const Tensor& gradient : gradients)
    if (gradient.dtype() == f16)
      fail<UsageError>("GradScaler.unscale", "a gradient is ", described(gradient),
                       "; unscaled in place it would underflow again. Keep the parameters in f32 "
                       "under autocast, or use MasterWeights.");
  if (gradients.empty()) return;
  check(gradients, inverse_scale(gradients[0].device()), progress);
  progress.stage = Stage::unscaled;
}

void GradScaler::collect(optim::Optimizer& optimizer, int which) {
  if (!enabled_) return;
  require_scaled("GradScaler.collect");
  const std::size_t loss = checked(which);
  Progress& progress = progress_[&optimizer];
  if (progress.stage != Stage::ready)
    fail<UsageError>(
        "GradScaler.collect",
        "called after unscale() or step() of this optimizer. Collect every loss first.");
  std::vector<Tensor> parameters = optimizer.parameters();
  progress.collected.resize(parameters.size());
  std::size_t position = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Tensor gradient = parameters[i].grad();
    if (!gradient.defined()) continue;
    Progress own;
    const MemoryScope scope(MemoryUse::master_gradient);
    std::vector<Tensor> wide{gradient.dtype() == f32 ? gradient : Cast::converted(gradient, f32)};
    check(wide, inverse_scale(gradient.device(), which), own);
    Tensor& sum = progress.collected[i];
    if (sum.defined()) backend_for(sum).accumulate(wide[0], sum);
    else sum = wide[0];
    parameters[i].set_grad({});
    progress.checked = true;
    if (own.overflowed) {
      progress.overflowed = overflowed_[loss] = true;
      if (!progress.first_overflow) progress.first_overflow = position;
    }
    ++position;
  }
}

void GradScaler::rescale(optim::Optimizer& optimizer, double made_with) {
  if (!enabled_ || made_with == scale_value()) return;
  for (Tensor gradient : optimizer.gradients()) {
    const Tensor factor = full({}, scale_value() / made_with, f32, gradient.device());
    backend_for(gradient).scale_all({&gradient, 1}, factor);
  }
}

// --- the step

bool GradScaler::step(optim::Optimizer& optimizer) {
  if (!enabled_) {
    optimizer.step();
    return true;
  }
  require_scaled("GradScaler.step");
  if (const auto known = progress_.find(&optimizer);
      known != progress_.end() && known->second.stage == Stage::stepped)
    fail<UsageError>("GradScaler.step",
                     "called twice for this optimizer since update(). Call update() after it.");
  Progress& progress = progress_[&optimizer];
  if (!progress.collected.empty()) {
    std::vector<Tensor> parameters = optimizer.parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      Tensor& sum = progress.collected[i];
      if (sum.defined()) parameters[i].set_grad(sum);  // f32 in any case: updates read all dtypes
    }
    progress.stage = Stage::unscaled;
  }
  std::vector<Tensor> gradients = optimizer.gradients();
  const bool divides = progress.stage == Stage::ready;
  if (divides && !gradients.empty()) check(gradients, {}, progress);
  if (!progress.checked)
    fail<UsageError>(
        "GradScaler.step",
        "this optimizer has no gradients, so nothing could be checked. Call backward() "
        "on a loss that its parameters are part of, or leave it out.");
  if (!progress.overflowed) {
    if (divides) optimizer.step_scaled(inverse_scale(gradients[0].device()));
    else optimizer.step();
  }
  progress.stage = Stage::stepped;
  return !progress.overflowed;
}

void GradScaler::report(const optim::Optimizer& optimizer, bool overflowed) {
  Progress& progress = progress_[&optimizer];
  if (enabled_ && progress.stage == Stage::unscaled)
    fail<UsageError>("GradScaler.report",
                     "called after unscale() of this optimizer, whose gradients are divided already. "
                     "Clip them with clip_grad_norm() of optim and call the scaler's step().");
  progress.checked = true, progress.overflowed |= overflowed;
}

std::optional<std::size_t> GradScaler::first_overflow(const optim::Optimizer& optimizer) const {
  const auto found = progress_.find(&optimizer);
  return found == progress_.end() ? std::nullopt : found->second.first_overflow;
}

void GradScaler::update(std::optional<double> new_scale) {
  if (!enabled_) return;
  require_scaled("GradScaler.update");
  if (new_scale) {
    LossScaleOptions options = scales_[0].options;
    options.init_scale = *new_scale;
    options.check("GradScaler.update");
    for (LossScale& s : scales_) s.scale = float(*new_scale);
  } else {
    bool checked = false, overflowed = false;
    for (const auto& [optimizer, progress] : progress_)
      checked |= progress.checked, overflowed |= progress.overflowed;
    if (!checked)
      fail<UsageError>("GradScaler.update",
                       "no gradients were checked since the last update(). Call step() of every "
                       "optimizer first.");
    const bool attributed = std::ranges::find(overflowed_, true) != overflowed_.end();
    for (std::size_t i = 0; i < scales_.size(); ++i)
      scales_[i] = next(scales_[i], attributed ? bool(overflowed_[i]) : overflowed);
  }
  progress_.clear();
  overflowed_.assign(scales_.size(), false);
}

}  // namespace halftone::amp
