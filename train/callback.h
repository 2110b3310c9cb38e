// What may happen around a Trainer's steps. Hooks are called in the order of the callbacks in
// TrainerOptions, the Trainer's own checkpoints last; each may look at everything the Trainer
// shows, log numbers, and stop the training.
#pragma once

#include <halftone/data/dataset.h>
#include <halftone/train/checkpoint.h>

namespace halftone::train {

class Trainer;

class Callback {
 public:
  Callback() = default;
  virtual ~Callback() = default;
  Callback(const Callback&) = delete;
  Callback& operator=(const Callback&) = delete;

  /// After a resumed training has its state back, before the first step.
  virtual void on_fit_start(Trainer&) {}
  /// May replace the batch (mixup).
  virtual void on_batch_start(Trainer&, data::Batch&) {}
  /// The loss of a batch before its backward pass. False: the step that it belongs to is dropped,
  /// with all its batches.
  virtual bool on_loss(Trainer&, const Tensor& loss) {
    static_cast<void>(loss);
    return true;
  }
  /// A record is about to be written: Trainer::log() adds to it.
  virtual void on_log(Trainer&) {}
  virtual void on_validation_end(Trainer&) {}
  /// After each step, behind its validation if there was one. Where checkpoints are saved.
  virtual void on_step_end(Trainer&) {}
  /// Behind the on_step_end() of an epoch's last step.
  virtual void on_epoch_end(Trainer&) {}
  /// However the training ended, unless by an exception.
  virtual void on_fit_end(Trainer&) {}

  /// What must survive a restart, under names that begin with "state."; read what save() wrote.
  virtual void save(CheckpointState&) const {}
  virtual void load(const CheckpointState&) {}
};

}  // namespace halftone::train
