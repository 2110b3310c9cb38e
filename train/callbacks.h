// Hooks around a Trainer's steps. The Trainer calls them in the order of the callbacks in
// TrainerOptions. A callback may read everything that the Trainer exposes, log numbers, and stop
// the training. Checkpoints are saved after all callbacks.
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

  /// Called after a resumed training has restored its state, before the first step.
  virtual void on_fit_start(Trainer&) {}
  /// May replace the batch by another with the same number of samples. All batches of a step get
  /// this call before the first of them is computed.
  virtual void on_batch_start(Trainer&, data::Batch&) {}
  /// Gets the loss of a batch before its backward pass; 0 for a batch without labels that count, in
  /// a step that has some. If it returns false, the batch's whole step
  /// is dropped, with all its batches, and the model's buffers return to their values before the
  /// step.
  virtual bool on_loss(Trainer&, const Tensor& loss) {
    static_cast<void>(loss);
    return true;
  }
  /// Whether on_loss() may return false or throw. If so, the Trainer copies the buffers in every
  /// step.
  virtual bool drops_steps() const { return false; }
  /// Called before a record is written; Trainer::log() adds to the record.
  virtual void on_log(Trainer&) {}
  virtual void on_validation_end(Trainer&) {}
  /// Called after each step, and after its validation if there is one. At the last step of an epoch
  /// the Trainer's position is already at the start of the next epoch.
  virtual void on_step_end(Trainer&) {}
  /// Called after the on_step_end() of an epoch's last step.
  virtual void on_epoch_end(Trainer&) {}
  /// Called when the training ends for any reason except an exception.
  virtual void on_fit_end(Trainer&) {}

  /// Returns an object that changes state while the Trainer validates and restores it in its
  /// destructor; null: changes nothing.
  virtual std::shared_ptr<void> during_validation(Trainer&) { return nullptr; }

  /// Returns tensors that must survive a restart, by name. load_tensors() gets them back before
  /// load_state() gets the numbers. Called while a checkpoint is saved.
  virtual std::map<std::string, Tensor> tensors() const { return {}; }
  virtual void load_tensors(const std::map<std::string, Tensor>& tensors) {
    static_cast<void>(tensors);
  }
  /// Returns numbers that must survive a restart. They return to the callback at the same place in
  /// the list, if it has the same class.
  virtual std::map<std::string, double> state() const { return {}; }
  virtual void load_state(const std::map<std::string, double>& state) { static_cast<void>(state); }
};

}  // namespace halftone::train
