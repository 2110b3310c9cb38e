// A task's functions on a batch, as a training runs them.
#pragma once

#include <halftone/amp/training.h>
#include <halftone/train/task.h>

namespace halftone::train {

/// The task's outputs for a batch, in the training's region.
Tensor outputs_of(const Task& task, amp::Training& training, const data::Batch& batch);
/// Their mean loss.
Tensor loss_of(const Task& task, const Tensor& outputs, const data::Batch& batch);

/// What its loss is a mean over: an f64 scalar.
Tensor count_of(const Task& task, const data::Batch& batch);

}  // namespace halftone::train
