// The stages of an optimizer between two calls of update(), and the multiplications of each stage.
#include <halftone/amp/grad_scaler.h>

#include <algorithm>

#include <halftone/autograd/ops.h>
#include <halftone/autograd/slots.h>
#include <halftone/core/backend.h>
#include <halftone/core/captured_step.h>
#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/core/named_tensors.h>
#include <halftone/optim/optimizer.h>

namespace halftone::amp {

namespace {
/// Returns a value other than 0 if either is not 0; undefined counts as 0. Writes neither `a` nor
/// `b`: other owners may hold them.
Tensor either(const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() ? a : b;
  return add(a, b.to(a.device()));
}
}  // namespace

GradScaler::GradScaler(const LossScaleOptions& options, ScalerUse use) : use_(use) {
  options.check("GradScaler");
  if (use.losses < 1) fail<UsageError>("GradScaler", "got ", use.losses, " losses. Use 1 or more.");
  scales_.assign(std::size_t(use.losses), DeviceLossScale(options));
  overflowed_.resize(scales_.size());
}

std::size_t GradScaler::checked(int which) const {
  if (which < 0 || std::size_t(which) >= scales_.size())
    fail<UsageError>("GradScaler", "got loss ", which, ", but the scaler has ", scales_.size(),
                     " (0 is the first). Set ScalerUse::losses when the scaler is made.");
  return std::size_t(which);
}

double GradScaler::scale_value(int which) const {
  return enabled() ? double(loss_scale(which).scale) : 1.0;
}
Tensor GradScaler::inverse_scale(Device device, int which) {
  const Tensor& scale = scale_tensor(which);
  Tensor inverse = empty_like(scale);
  backend_for(scale).unary(call_of<UnaryFormulas>(formula::Reciprocal{}), scale, inverse);
  return inverse.to(device);
}

void GradScaler::set_options(const LossScaleOptions& options) {
  LossScaleOptions with_present_scale = options;
  for (const DeviceLossScale& s : scales_) {
    with_present_scale.init_scale = double(s.read().scale);
    with_present_scale.check("GradScaler.set_options");
  }
  for (DeviceLossScale& s : scales_) s.set_options(options);
}

// --- forward

Tensor GradScaler::scale(const Tensor& loss, int which) {
  if (!enabled()) return loss;
  scales_[checked(which)].move_to(loss.device());
  scaled_ = true;
  const Tensor scaled = mul(loss, scale_tensor(which));
  mark_scaled_loss(scaled);
  return scaled;
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

void GradScaler::check(std::vector<Tensor>& gradients, const Tensor& factor,
                       Tensor& found_inf) const {
  optim::for_each_device(std::span(gradients), [&](std::span<Tensor> some, Backend& backend) {
    const Device device = some[0].device();
    Tensor here = zeros({}, f32, device);
    backend.unscale(some, factor.defined() ? factor.to(device) : factor, here);
    found_inf = either(found_inf, here);
  });
}

void GradScaler::note_first_overflow(std::span<const Tensor> gradients, Progress& progress) const {
  if (!host_decides(use_.decision, progress.found_inf)) return;
  if (*progress.found_inf.data<float>() != 0) progress.first_overflow = first_not_finite(gradients);
}

void GradScaler::unscale(optim::Optimizer& optimizer) {
  if (!enabled()) return;
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
  check(gradients, inverse_scale(gradients[0].device()), progress.found_inf);
  agree(progress.found_inf);
  note_first_overflow(gradients, progress);
  progress.stage = Stage::unscaled;
}

void GradScaler::collect(optim::Optimizer& optimizer, int which) {
  if (!enabled()) return;
  require_scaled("GradScaler.collect");
  const std::size_t loss = checked(which);
  Progress& progress = progress_[&optimizer];
  if (progress.stage != Stage::ready)
    fail<UsageError>(
        "GradScaler.collect",
        "called after unscale() or step() of this optimizer. Collect every loss first.");
  std::vector<Tensor> parameters = optimizer.parameters();
  progress.collected.resize(parameters.size());
  const Tensor inverse = inverse_scale(scale_tensor(which).device(), which);
  Tensor found_inf;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Tensor gradient = parameters[i].grad();
    if (!gradient.defined()) continue;
    std::vector<Tensor> wide{gradient};
    if (gradient.dtype() != f32) {
      const MemoryScope scope(MemoryUse::master_gradient);
      wide[0] = converted(gradient, f32);
    }
    check(wide, inverse, found_inf);
    Tensor& sum = progress.collected[i];
    if (sum.defined()) backend_for(sum).accumulate(wide[0], sum);
    else sum = wide[0];
    parameters[i].set_grad({});
  }
  if (!found_inf.defined()) return;
  agree(found_inf);
  overflowed_[loss] = either(overflowed_[loss], found_inf);
  progress.found_inf = either(progress.found_inf, found_inf);
  note_first_overflow(progress.collected, progress);
}

void GradScaler::rescale(optim::Optimizer& optimizer, const Tensor& made_with) {
  if (!enabled()) return;
  const Tensor& now = scale_tensor();
  const Tensor factor = div(now, made_with.to(now.device()));
  std::vector<Tensor> gradients = optimizer.gradients();
  optim::scale_gradients(gradients, factor);
}

// --- the step

Stepped GradScaler::step(optim::Optimizer& optimizer) {
  if (!enabled()) return amp::step(optimizer, {});
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
  const bool divides = progress.stage == Stage::ready && !gradients.empty();
  if (divides) {
    check(gradients, {}, progress.found_inf), agree(progress.found_inf);
    note_first_overflow(gradients, progress);
  }
  if (!progress.found_inf.defined())
    fail<UsageError>(
        "GradScaler.step",
        "this optimizer has no gradients, so nothing could be checked. Call backward() "
        "on a loss that its parameters are part of, or leave it out.");
  const Tensor factor = divides ? inverse_scale(gradients[0].device()) : Tensor{};
  Stepped stepped =
      amp::step(optimizer, {.factor = factor, .skip = progress.found_inf}, use_.decision);
  progress.stage = Stage::stepped;
  return stepped;
}

void GradScaler::report(const optim::Optimizer& optimizer, const Tensor& found_inf) {
  if (!enabled()) return;
  Progress& progress = progress_[&optimizer];
  if (progress.stage == Stage::unscaled)
    fail<UsageError>(
        "GradScaler.report",
        "called after unscale() of this optimizer, whose gradients are divided already. "
        "Clip them with clip_grad_norm() of optim and call the scaler's step().");
  progress.found_inf = either(progress.found_inf, found_inf);
}

std::optional<std::size_t> GradScaler::first_overflow(const optim::Optimizer& optimizer) const {
  if (!progress_.contains(&optimizer)) return {};
  const Progress& progress = progress_.at(&optimizer);
  if (progress.first_overflow) return progress.first_overflow;
  if (!progress.found_inf.defined() || progress.found_inf.item() == 0) return {};
  return first_not_finite(progress.collected.empty() ? optimizer.gradients() : progress.collected);
}

/// The overflow flag for the scale of `loss` at update(). An overflow that collect() found belongs
/// to its loss. If collect() found none, the flag `any` is that of every loss.
Tensor GradScaler::overflow_of(std::size_t loss, const Tensor& any) const {
  Tensor attributed;
  for (const Tensor& found_inf : overflowed_) attributed = either(attributed, found_inf);
  if (!attributed.defined()) return any;
  const Tensor none = zeros({}, f32, attributed.device());
  const Tensor own = overflowed_[loss].defined() ? overflowed_[loss].to(none.device()) : none;
  return where(equal(attributed, none), any.to(none.device()), own);
}

void GradScaler::update(std::optional<double> new_scale) {
  if (!enabled()) return;
  require_scaled("GradScaler.update");
  if (new_scale) {
    LossScaleOptions options = scales_[0].options();
    options.init_scale = *new_scale;
    options.check("GradScaler.update");
    for (DeviceLossScale& s : scales_) s.set(*new_scale);
  } else {
    Tensor any;
    for (const auto& [optimizer, progress] : progress_) any = either(any, progress.found_inf);
    if (!any.defined())
      fail<UsageError>("GradScaler.update",
                       "no gradients were checked since the last update(). Call step() of every "
                       "optimizer first.");
    for (std::size_t i = 0; i < scales_.size(); ++i) scales_[i].next(overflow_of(i, any));
  }
  progress_.clear();
  overflowed_.assign(scales_.size(), {});
}

// The scaler's state dictionary, under PyTorch's names.

namespace {
constexpr std::string_view loading_scale = "GradScaler.load_state_dict";

std::string key(std::string_view name, std::size_t loss) {
  std::string text(name);
  if (loss > 0) text += '.', text += std::to_string(loss);
  return text;
}
}  // namespace

optim::NamedTensors GradScaler::state_dict() const {
  optim::NamedTensors state;
  if (!enabled()) return state;
  for (std::size_t i = 0; i < scales_.size(); ++i) {
    const LossScale s = scales_[i].read();
    state[key("scale", i)] = scalar(double(s.scale), f64);
    state[key("growth_factor", i)] = scalar(s.options.growth_factor, f64);
    state[key("backoff_factor", i)] = scalar(s.options.backoff_factor, f64);
    state[key("growth_interval", i)] = scalar(double(s.options.growth_interval), i64);
    state[key("_growth_tracker", i)] = scalar(double(s.growth_tracker), i64);
    if (s.options.hysteresis > 1)
      state[key("_hysteresis", i)] = scalar(double(s.overflows_left), i64);
  }
  return state;
}

void GradScaler::load_state_dict(const optim::NamedTensors& state) {
  if (!enabled()) return;
  if (state.empty())
    fail<UsageError>(loading_scale,
                     "the state is empty: it was saved by a disabled scaler. Disable this "
                     "one, or leave the state out.");
  Entries entries(loading_scale, "a GradScaler with the same number of losses", state);
  std::vector<LossScale> loaded;
  for (const DeviceLossScale& s : scales_) loaded.push_back(s.read());
  for (std::size_t i = 0; i < loaded.size(); ++i) {
    LossScale& s = loaded[i];
    s.options.init_scale = entries.number(key("scale", i));
    s.options.growth_factor = entries.number(key("growth_factor", i));
    s.options.backoff_factor = entries.number(key("backoff_factor", i));
    s.options.growth_interval = entries.count(key("growth_interval", i), "growth_interval");
    s.growth_tracker = entries.count(key("_growth_tracker", i), "_growth_tracker");
    s.options.check(loading_scale);
    s.scale = float(s.options.init_scale);
    if (const std::string left = key("_hysteresis", i); entries.has(left))
      s.overflows_left = int(std::min<int64_t>(entries.count(left, left), s.options.hysteresis));
  }
  entries.refuse_rest();
  // The progress of a step that has begun does not change, as in PyTorch.
  for (std::size_t i = 0; i < loaded.size(); ++i) scales_[i].write(loaded[i]);
}

// A loss scale is three scalars, which the backend updates.

DeviceLossScale::DeviceLossScale(const LossScaleOptions& options) : options_(options) {
  const MemoryScope scope(MemoryUse::workspace);
  const LossScale initial{.options = options};
  scale_ = scalar(double(initial.scale), f32);
  growth_tracker_ = scalar(double(initial.growth_tracker), i64);
  overflows_left_ = scalar(double(initial.overflows_left), i32);
}

DeviceLossScale::DeviceLossScale(const DeviceLossScale& other) : options_(other.options_) {
  const MemoryScope scope(MemoryUse::workspace);
  scale_ = other.scale_.clone(), growth_tracker_ = other.growth_tracker_.clone();
  overflows_left_ = other.overflows_left_.clone();
}

DeviceLossScale& DeviceLossScale::operator=(const DeviceLossScale& other) {
  return *this = DeviceLossScale(other);
}

void DeviceLossScale::set_options(const LossScaleOptions& options) {
  if (options_.hysteresis != options.hysteresis) fill_with(overflows_left_, options.hysteresis);
  options_ = options;
}

void DeviceLossScale::move_to(Device device) {
  if (scale_.device() == device) return;
  const MemoryScope scope(MemoryUse::workspace);
  for (Tensor* x : {&scale_, &growth_tracker_, &overflows_left_}) *x = x->to(device);
  present_ = {};
}

const Tensor& DeviceLossScale::present() {
  // A copy is valid either inside the capture that made it or outside of captures: a replay has
  // another scale.
  const uint64_t version =
      2 * scale_.storage()->version() + (backend_for(scale_).capturing() ? 1 : 0);
  if (present_.defined() && present_version_ == version) return present_;
  const MemoryScope scope(MemoryUse::workspace);
  present_ = scale_.clone(), present_version_ = version;
  return present_;
}

void DeviceLossScale::next(const Tensor& found_inf) {
  backend_for(scale_).next_loss_scale(options_, found_inf.to(scale_.device()), scale_,
                                      growth_tracker_, overflows_left_);
  if (recording_step())
    repeat_on_replay([scale = scale_] { mark_written(scale); });  // for present()
}

void DeviceLossScale::set(double scale) { fill_with(scale_, scale); }

LossScale DeviceLossScale::read() const {
  return {.options = options_,
          .scale = float(scale_.item()),
          .growth_tracker = int64_t(growth_tracker_.item()),
          .overflows_left = int(overflows_left_.item())};
}

void DeviceLossScale::write(const LossScale& values) {
  options_ = values.options;
  fill_with(scale_, double(values.scale));
  fill_with(growth_tracker_, double(values.growth_tracker));
  fill_with(overflows_left_, double(values.overflows_left));
}

// The decision to skip a step, and the search for the gradient that overflowed.

bool host_decides(Decision decision, const Tensor& flag) {
  return decision == Decision::where_free && flag.device().kind == DeviceKind::cpu;
}

Stepped step(optim::Optimizer& optimizer, const optim::StepControl& control, Decision decision) {
  Stepped stepped = control.skip.defined() ? Stepped(control.skip) : Stepped(true);
  if (stepped.known() || host_decides(decision, control.skip)) {
    if (stepped) optimizer.step({.factor = control.factor, .knows_scale = true});
  } else {
    optimizer.step({.factor = control.factor, .skip = control.skip, .knows_scale = true});
  }
  return stepped;
}

std::optional<std::size_t> first_not_finite(std::span<const Tensor> gradients) {
  std::size_t position = 0;
  for (Tensor gradient : gradients) {
    if (!gradient.defined()) continue;
    Tensor found_inf = zeros({}, f32, gradient.device());
    backend_for(gradient).unscale({&gradient, 1}, {}, found_inf);
    if (found_inf.item() != 0) return position;
    ++position;
  }
  return {};
}

}  // namespace halftone::amp
