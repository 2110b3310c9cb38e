// Passes validation metrics to optim::ReduceOnPlateau.
#include <halftone/train/callbacks/lr_on_plateau.h>

#include <halftone/core/error.h>
#include <halftone/train/trainer.h>

namespace halftone::train {

LrOnPlateau::LrOnPlateau(std::string metric, optim::PlateauOptions options)
    : metric_(std::move(metric)), options_(options) {}

void LrOnPlateau::on_fit_start(Trainer& trainer) {
  if (!trainer.validates())
    fail<UsageError>("LrOnPlateau", "nothing validates, so ", metric_,
                     " will never be looked at. Pass fit() a second loader, or leave this out.");
  if (trainer.options().schedule)
    fail<UsageError>("LrOnPlateau",
                     "a schedule sets the rates anew at each step. Use one of them.");
  if (plateau_) return;  // a second fit() continues with it
  plateau_.emplace(trainer.training().optimizer(), options_);
  if (!loaded_.empty()) plateau_->load_state(loaded_);
}

void LrOnPlateau::on_validation_end(Trainer& trainer) {
  if (!plateau_->step(trainer.metric(metric_))) return;
  PlainText text;
  text << "  " << metric_ << " has stopped improving: the learning rate is "
       << trainer.training().optimizer().lr() << " now";
  trainer.note(text.str());
}

std::map<std::string, double> LrOnPlateau::state() const {
  return plateau_ ? plateau_->state() : loaded_;
}

}  // namespace halftone::train
