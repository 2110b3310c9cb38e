// Calls a task's functions of inputs and targets, or of whole batches.
#include <halftone/train/task_steps.h>

#include <halftone/core/error.h>
#include <halftone/core/factory.h>

namespace halftone::train {

Tensor outputs_of(const Task& task, amp::Training& training, const data::Batch& batch) {
  if (!task.forward && !task.forward_batch)
    fail<UsageError>("Task", "the task has no forward. Give it that function.");
  if (!task.forward_batch) return training.forward(task.forward, batch.inputs);
  const auto forward = [&](const Tensor& inputs) {
    data::Batch shown{inputs, batch.targets};
    for (const Tensor& x : batch.more) shown.more.push_back(training.as_input(x));
    return task.forward_batch(shown);
  };
  return training.forward(forward, batch.inputs);
}

Tensor loss_of(const Task& task, const Tensor& outputs, const data::Batch& batch) {
  if (!task.loss && !task.loss_of_batch)
    fail<UsageError>("Task", "the task has no loss. Give it that function.");
  return task.loss ? task.loss(outputs, batch.targets) : task.loss_of_batch(outputs, batch);
}

Tensor count_of(const Task& task, const data::Batch& batch) {
  if (task.count && batch.targets.defined()) return task.count(batch.targets);
  return scalar(double(batch.inputs.size(0)), f64, batch.inputs.device());
}

}  // namespace halftone::train
