// The formulas of the schedules, and the object that applies them.
#include <halftone/optim/lr_schedule.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/core/math.h>
#include <halftone/optim/grouped_optimizer.h>

namespace halftone::optim {
namespace {

void require_steps(std::string_view schedule, std::string_view name, int64_t steps, int64_t least) {
  if (steps < least) fail<UsageError>(schedule, name, " is ", steps, ". Use ", least, " or more.");
}

/// Returns the completed part of the steps, from 0 to 1.
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
  return LrSchedule([=](int64_t step) {
    return elementary::pow(gamma, std::floor(double(step) / double(every)));
  });
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
    return last +
           (1 - last) * 0.5 * (1 + elementary::cos(std::numbers::pi * progress(step, steps)));
  });
}

LrSchedule LrSchedule::warm_up(int64_t steps, const LrSchedule& after) {
  require_steps("LrSchedule.warm_up", "steps", steps, 0);
  return LrSchedule([=](int64_t step) {
    return step < steps ? double(step + 1) / double(steps) * after.at(0) : after.at(step - steps);
  });
}

LrSchedule LrSchedule::multi_step(std::vector<int64_t> milestones, double gamma) {
  for (const int64_t milestone : milestones)
    require_steps("LrSchedule.multi_step", "a milestone", milestone, 0);
  detail::require_not_negative("LrSchedule.multi_step", "gamma", gamma);
  return LrSchedule([milestones = std::move(milestones), gamma](int64_t step) {
    const auto reached = std::ranges::count_if(milestones, [=](int64_t m) { return m <= step; });
    return elementary::pow(gamma, double(reached));
  });
}

LrSchedule LrSchedule::exponential(double gamma) {
  detail::require_not_negative("LrSchedule.exponential", "gamma", gamma);
  return LrSchedule([=](int64_t step) { return elementary::pow(gamma, double(step)); });
}

LrSchedule LrSchedule::polynomial(int64_t steps, double power) {
  require_steps("LrSchedule.polynomial", "steps", steps, 1);
  detail::require_not_negative("LrSchedule.polynomial", "power", power);
  return LrSchedule(
      [=](int64_t step) { return elementary::pow(1 - progress(step, steps), power); });
}

LrSchedule LrSchedule::cosine_restarts(int64_t first, int64_t growth, double last) {
  require_steps("LrSchedule.cosine_restarts", "first", first, 1);
  require_steps("LrSchedule.cosine_restarts", "growth", growth, 1);
  detail::require_not_negative("LrSchedule.cosine_restarts", "last", last);
  return LrSchedule([=](int64_t step) {
    int64_t length = first;
    if (growth == 1) step %= length;
    else
      for (; step >= length; length *= growth) step -= length;
    return last +
           (1 - last) * 0.5 * (1 + elementary::cos(std::numbers::pi * progress(step, length)));
  });
}

LrSchedule LrSchedule::one_cycle(int64_t steps, double rising, double start_divisor,
                                 double end_divisor) {
  require_steps("LrSchedule.one_cycle", "steps", steps, 1);
  if (!(rising >= 0 && rising <= 1))
    fail<UsageError>("LrSchedule.one_cycle", "rising is ", rising, ". Use a share from 0 to 1.");
  if (!(start_divisor > 0 && end_divisor > 0))
    fail<UsageError>("LrSchedule.one_cycle", "the divisors are ", start_divisor, " and ",
                     end_divisor, ". Use positive ones.");
  detail::require_finite("LrSchedule.one_cycle", "start_divisor", start_divisor);
  detail::require_finite("LrSchedule.one_cycle", "end_divisor", end_divisor);
  return LrSchedule([=](int64_t step) {
    const double start = 1 / start_divisor, end = start / end_divisor;
    const double top = rising * double(steps) - 1, bottom = double(steps) - 1;
    const auto between = [](double from, double to, double share) {
      return to + (from - to) / 2 *
                      (1 + elementary::cos(std::numbers::pi * std::clamp(share, 0.0, 1.0)));
    };
    const auto at = double(step);
    if (at <= top) return between(start, 1, top > 0 ? at / top : 1);
    return between(1, end, bottom > top ? (at - top) / (bottom - top) : 1);
  });
}

ReduceOnPlateau::ReduceOnPlateau(Optimizer& optimizer, PlateauOptions options)
    : optimizer_(&optimizer),
      options_(options),
      best_(options.larger_is_better ? -std::numeric_limits<double>::infinity()
                                     : std::numeric_limits<double>::infinity()) {
  if (!(options.factor > 0 && options.factor < 1))
    fail<UsageError>("ReduceOnPlateau", "factor is ", options.factor, ". Use one between 0 and 1.");
  require_steps("ReduceOnPlateau", "patience", options.patience, 0);
  require_steps("ReduceOnPlateau", "cooldown", options.cooldown, 0);
}

bool ReduceOnPlateau::improves(double value) const {
  const double sign = options_.larger_is_better ? 1 : -1;
  // As PyTorch: relative thresholds move the best value away from 0, for either sign.
  const double bar = options_.absolute_threshold ? best_ + sign * options_.threshold
                                                 : best_ * (1 + sign * options_.threshold);
  return options_.larger_is_better ? value > bar : value < bar;
}

bool ReduceOnPlateau::step(double value) {
  if (improves(value)) best_ = value, bad_ = 0;
  else ++bad_;
  if (cooldown_ > 0) --cooldown_, bad_ = 0;
  if (bad_ <= options_.patience) return false;
  bool reduced = false;
  for (int group = 0; group < optimizer_->group_count(); ++group) {
    const double lr = optimizer_->lr(group), next = std::max(lr * options_.factor, options_.min_lr);
    if (lr - next <= options_.eps) continue;
    optimizer_->set_lr(next, group);
    reduced = true;
  }
  cooldown_ = options_.cooldown, bad_ = 0;
  return reduced;
}

std::map<std::string, double> ReduceOnPlateau::state() const {
  return {{"best", best_}, {"bad", double(bad_)}, {"cooldown", double(cooldown_)}};
}

void ReduceOnPlateau::load_state(const std::map<std::string, double>& state) {
  for (const char* name : {"best", "bad", "cooldown"})
    if (!state.contains(name))
      fail<UsageError>("ReduceOnPlateau.load_state", "there is no \"", name,
                       "\" in it. Load what state() gave.");
  best_ = state.at("best");
  bad_ = int64_t(state.at("bad")), cooldown_ = int64_t(state.at("cooldown"));
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
