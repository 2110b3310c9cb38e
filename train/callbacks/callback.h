// What may happen around a Trainer's steps. Hooks are called in the order of the callbacks in
// TrainerOptions; each may look at everything the Trainer shows, log numbers, and stop the
// training. Checkpoints are saved after all of them.
#pragma once

#include <map>
#include <memory>
#include <string>

#include <halftone/data/dataset.h>

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
  /// May replace the batch by one of as many samples.
  virtual void on_batch_start(Trainer&, data::Batch&) {}
  /// The loss of a batch before its backward pass. False: the step that it belongs to is dropped,
  /// with all its batches, and the model's buffers are as they were before it.
  virtual bool on_loss(Trainer&, const Tensor& loss) {
    static_cast<void>(loss);
    return true;
  }
  /// Whether on_loss() may say false or throw: then copies of the buffers are kept in every step.
  virtual bool drops_steps() const { return false; }
  /// A record is about to be written: Trainer::log() adds to it.
  virtual void on_log(Trainer&) {}
  virtual void on_validation_end(Trainer&) {}
  /// After each step, behind its validation if there was one. At the last step of an epoch the
  /// Trainer's position is already that of the next one.
  virtual void on_step_end(Trainer&) {}
  /// Behind the on_step_end() of an epoch's last step.
  virtual void on_epoch_end(Trainer&) {}
  /// However the training ended, unless by an exception.
  virtual void on_fit_end(Trainer&) {}

  /// Holds, until it is destroyed, whatever shall be otherwise while the Trainer validates; null
  /// for nothing.
  virtual std::shared_ptr<void> during_validation(Trainer&) { return nullptr; }

  /// Tensors that must survive a restart, by name; they come back as the numbers of state() do,
  /// before those. Called while a checkpoint is saved.
  virtual std::map<std::string, Tensor> tensors() const { return {}; }
  virtual void load_tensors(const std::map<std::string, Tensor>& tensors) {
    static_cast<void>(tensors);
  }
  /// Numbers that must survive a restart; they come back to the callback at the same place in the
  /// list, if it is of the same class.
  virtual std::map<std::string, double> state() const { return {}; }
  virtual void load_state(const std::map<std::string, double>& state) { static_cast<void>(state); }
};

}  // namespace halftone::train
