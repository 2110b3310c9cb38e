// Counts validations without improvement; checkpoints contain the count.
#include <halftone/train/callbacks/early_stopping.h>

#include <cmath>
#include <limits>

#include <halftone/train/numbers.h>
#include <halftone/train/trainer.h>

namespace halftone::train {

EarlyStopping::EarlyStopping(EarlyStoppingOptions options)
    : options_(std::move(options)),
      best_((options_.larger_is_better ? -1 : 1) * std::numeric_limits<double>::infinity()) {
  if (options_.patience < 1)
    fail<UsageError>("EarlyStopping", "patience is ", options_.patience, ". Use 1 or more.");
  if (!(options_.min_delta >= 0) || std::isinf(options_.min_delta))
    fail<UsageError>("EarlyStopping", "min_delta is ", options_.min_delta, ". Use 0 or more.");
}

void EarlyStopping::on_fit_start(Trainer& trainer) {
  if (!trainer.validates())
    fail<UsageError>("EarlyStopping", "nothing validates, so ", options_.metric,
                     " will never be looked at. Pass fit() a second loader, or leave this out.");
  stop_if_hopeless(trainer);
}

void EarlyStopping::on_validation_end(Trainer& trainer) {
  const double value = trainer.metric(options_.metric), delta = options_.min_delta;
  if (options_.check_finite && !std::isfinite(value))
    return trainer.stop(options_.metric + " is not finite");
  const bool better = options_.larger_is_better ? value > best_ + delta : value < best_ - delta;
  if (better) best_ = value, waited_ = 0;
  else ++waited_;
  stop_if_hopeless(trainer);
}

void EarlyStopping::stop_if_hopeless(Trainer& trainer) const {
  if (waited_ >= options_.patience)
    trainer.stop(options_.metric + " has not improved for " + std::to_string(waited_) +
                 " validations");
}

std::map<std::string, double> EarlyStopping::state() const {
  return {{"best", best_}, {"waited", double(waited_)}};
}

void EarlyStopping::load_state(const std::map<std::string, double>& state) {
  best_ = number_in(state, "best"), waited_ = count_in(state, "waited");
}

}  // namespace halftone::train
