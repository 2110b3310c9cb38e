// Runs a task's functions on a batch as a training does.
#pragma once

#include <halftone/amp/training.h>
#include <halftone/train/task.h>

namespace halftone::train {

/// Returns the task's outputs for a batch, in the training's region.
Tensor outputs_of(const Task& task, amp::Training& training, const data::Batch& batch);
/// Returns the mean loss of outputs.
Tensor loss_of(const Task& task, const Tensor& outputs, const data::Batch& batch);

/// Returns the divisor of the loss's mean: an f64 scalar.
Tensor count_of(const Task& task, const data::Batch& batch);

}  // namespace halftone::train
