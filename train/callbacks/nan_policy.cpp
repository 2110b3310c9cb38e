// Reacts to a loss that is not finite: throws, ends the training, or drops the step.
#include <halftone/train/callbacks/nan_policy.h>

#include <cmath>

#include <halftone/train/numbers.h>
#include <halftone/train/trainer.h>

namespace halftone::train {

NanPolicy::NanPolicy(const NanPolicyOptions& options) : options_(options) {
  if (options.patience < 1 || options.every_batches < 1)
    fail<UsageError>("NanPolicy", "patience ", options.patience, ", every_batches ",
                     options.every_batches, ". Use 1 or more of each.");
}

bool NanPolicy::on_loss(Trainer& trainer, const Tensor& loss) {
  if (batches_++ % options_.every_batches != 0) return true;
  const double value = loss.item();
  if (std::isfinite(value)) return true;
  const std::string after = "after step " + std::to_string(trainer.position().step);
  if (options_.action == OnNan::fail)
    fail<UsageError>("NanPolicy", "the loss is ", value, ' ', after,
                     ". Lower the learning rate, clip gradients, or look at this batch.");
  ++dropped_, ++in_a_row_;
  if (options_.action == OnNan::stop || in_a_row_ >= options_.patience)
    trainer.stop("the loss is not finite " + after);
  return false;
}

std::map<std::string, double> NanPolicy::state() const {
  return {{"batches", double(batches_)},
          {"dropped", double(dropped_)},
          {"in_a_row", double(in_a_row_)}};
}

void NanPolicy::load_state(const std::map<std::string, double>& state) {
  batches_ = count_in(state, "batches"), dropped_ = count_in(state, "dropped");
  in_a_row_ = count_in(state, "in_a_row");
}

}  // namespace halftone::train
