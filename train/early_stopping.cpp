#include <halftone/train/early_stopping.h>

#include <cmath>
#include <limits>

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

void EarlyStopping::on_validation_end(Trainer& trainer) {
  const double value = trainer.metric(options_.metric), delta = options_.min_delta;
  const bool better = options_.larger_is_better ? value > best_ + delta : value < best_ - delta;
  if (better) best_ = value, waited_ = 0;
  else if (++waited_ >= options_.patience)
    trainer.stop(options_.metric + " has not improved for " + std::to_string(waited_) +
                 " validations");
}

void EarlyStopping::save(CheckpointState& state) const {
  state.numbers["state.early_stopping.best." + options_.metric] = best_;
  state.numbers["state.early_stopping.waited." + options_.metric] = double(waited_);
}

void EarlyStopping::load(const CheckpointState& state) {
  const auto best = state.numbers.find("state.early_stopping.best." + options_.metric),
             waited = state.numbers.find("state.early_stopping.waited." + options_.metric);
  if (best == state.numbers.end() || waited == state.numbers.end()) return;  // new in this run
  best_ = best->second, waited_ = int64_t(waited->second);
}

}  // namespace halftone::train
