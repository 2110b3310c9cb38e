// Blends the inputs and targets of each batch with a permutation of the batch.
#include <halftone/train/callbacks/mixup.h>

#include <cmath>

#include <halftone/autograd/ops.h>
#include <halftone/autograd/slots.h>
#include <halftone/data/images/mixup.h>
#include <halftone/train/trainer.h>

namespace halftone::train {

Mixup::Mixup(int64_t classes, MixupOptions options) : classes_(classes), options_(options) {
  if (classes < 2)
    fail<UsageError>("Mixup", "there are ", classes, " classes. Say how many the labels have.");
  if (!(options.alpha >= 0) || !std::isfinite(options.alpha))
    fail<UsageError>("Mixup", "alpha is ", options.alpha, ". Give a number from 0, such as 0.2.");
}

void Mixup::require_classes(const Tensor& labels) const {
  if (is_floating(labels.dtype())) return;  // one_hot() refuses them
  for (const int64_t label : labels.to_vector<int64_t>())
    if (label < 0 || label >= classes_)
      fail<UsageError>("Mixup", "the label ", label, " is none of the ", classes_,
                       " classes: an ignored sample has no probabilities to blend. Leave such "
                       "samples out of the dataset, or train without Mixup.");
}

void Mixup::on_batch_start(Trainer& trainer, data::Batch& batch) {
  const NoGrad no_grad;
  const Device device = batch.inputs.device();
  const CheckpointState& at = trainer.position();
  Generator random = data::EpochKey{options_.seed, at.epoch}.generator_for(at.batches);
  const data::MixedBatch mixed = data::mixup(
      {batch.inputs.to(Device::cpu()), batch.targets.to(Device::cpu())}, options_.alpha, random);
  require_classes(mixed.targets);
  const auto shares = [&](const Tensor& labels) { return cast(one_hot(labels, classes_), f32); };
  batch.inputs = mixed.inputs.to(device);
  batch.targets =
      (shares(mixed.targets) * mixed.share + shares(mixed.other_targets) * (1 - mixed.share))
          .to(device);
}

}  // namespace halftone::train
