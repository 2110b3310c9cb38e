// The formulas of the schedules, and the object that applies them.
#include <halftone/optim/lr_schedule.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/optim/grouped_optimizer.h>

namespace halftone::optim {
namespace {

void require_steps(std::string_view schedule, std::string_view name, int64_t steps, int64_t least) {
  if (steps < least) fail<UsageError>(schedule, name, " is ", steps, ". Use ", least, " or more.");
}

/// How much of the way is done, from 0 to 1.
double progress(int64_t step, int64_t steps) {
  return std::clamp(double(step) / double(steps), 0.0, 1.0);
}

}  // namespace

LrSchedule LrSchedule::constant(double factor) {
  detail::require_not_negative("LrSchedule.constant", "factor", factor);
  return LrSchedule([=](int64_t) { return factor; });
}

LrSchedule LrSchedule::step_decay(int64_t every, double gamma) {
  require_steps("LrSchedule.step_decay", "every", every, 1);
  detail::require_not_negative("LrSchedule.step_decay", "gamma", gamma);
  return LrSchedule(
      [=](int64_t step) { return std::pow(gamma, std::floor(double(step) / double(every))); });
}

LrSchedule LrSchedule::linear(int64_t steps, double last) {
  require_steps("LrSchedule.linear", "steps", steps, 1);
  detail::require_not_negative("LrSchedule.linear", "last", last);
  return LrSchedule([=](int64_t step) { return 1 + (last - 1) * progress(step, steps); });
}

LrSchedule LrSchedule::cosine(int64_t steps, double last) {
  require_steps("LrSchedule.cosine", "steps", steps, 1);
  detail::require_not_negative("LrSchedule.cosine", "last", last);
  return LrSchedule([=](int64_t step) {
    return last + (1 - last) * 0.5 * (1 + std::cos(std::numbers::pi * progress(step, steps)));
  });
}

LrSchedule LrSchedule::warm_up(int64_t steps, const LrSchedule& after) {
  require_steps("LrSchedule.warm_up", "steps", steps, 0);
  return LrSchedule([=](int64_t step) {
    return step < steps ? double(step + 1) / double(steps) * after.at(0) : after.at(step - steps);
  });
}

LrScheduler::LrScheduler(Optimizer& optimizer, LrSchedule schedule)
    : optimizer_(&optimizer), schedule_(std::move(schedule)) {
  for (int group = 0; group < optimizer.group_count(); ++group)
    base_lrs_.push_back(optimizer.lr(group));
  apply();
}

void LrScheduler::step() {
  ++step_;
  apply();
}

void LrScheduler::apply() {
  const double factor = schedule_.at(step_);
  detail::require_not_negative("LrScheduler", "the factor at step " + std::to_string(step_),
                               factor);
  for (std::size_t group = 0; group < base_lrs_.size(); ++group)
    optimizer_->set_lr(base_lrs_[group] * factor, int(group));
}

NamedTensors LrScheduler::state_dict() const {
  return {{"step", scalar(double(step_), i64)},
          {"base_lrs", from_vector(base_lrs_, {int64_t(base_lrs_.size())}, f64)}};
}

void LrScheduler::load_state_dict(const NamedTensors& state) {
  const auto step = state.find("step"), base_lrs = state.find("base_lrs");
  if (state.size() != 2 || step == state.end() || base_lrs == state.end())
    fail<UsageError>("LrScheduler.load_state_dict", "the state has ", state.size(),
                     " entries. It must have `step` and `base_lrs`, as state_dict() writes them.");
  if (base_lrs->second.numel() != int64_t(base_lrs_.size()))
    fail<UsageError>("LrScheduler.load_state_dict", "the state has ", base_lrs->second.numel(),
                     " rates, the optimizer ", base_lrs_.size(),
                     " groups. Load what was saved for the same groups.");
  step_ = int64_t(step->second.item());
  base_lrs_ = base_lrs->second.to_vector<double>();
  apply();
}

}  // namespace halftone::optim
