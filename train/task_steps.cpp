// Calls a task's functions of inputs and targets, or of whole batches.
#include <halftone/train/task_steps.h>

#include <algorithm>

#include <halftone/autograd/ops.h>
#include <halftone/core/error.h>
#include <halftone/core/factory.h>

namespace halftone::train {

namespace {
/// Returns f64 numbers in f32, unless the model has f64 weights: tables and NumPy are f64, models
/// rarely.
Tensor as_model(const Task& task, const amp::Training& training, const Tensor& x) {
  if (!x.defined() || x.dtype() != f64 || training.strategy().weights == f64) return x;
  const std::vector<Tensor> weights = task.model.parameters();
  const bool wide = std::ranges::any_of(weights, [](const Tensor& w) { return w.dtype() == f64; });
  return wide ? x : cast(x, f32);
}

/// Calls `forward`; says more about integers that the model refuses.
template <class F> Tensor with_integers_named(const data::Batch& batch, const F& forward) {
  try {
    return forward();
  } catch (const DTypeError& error) {
    if (!batch.inputs.defined() || is_floating(batch.inputs.dtype())) throw;
    PlainText text;
    text << described(batch.inputs);
    const std::string inputs = text.str();
    if (std::string_view(error.what()).find(inputs) == std::string_view::npos) throw;
    fail<DTypeError>("Task", "the inputs are ", inputs,
                     ", and the model refuses that: ", error.what(),
                     " Give the dataset cast(inputs, f32), unless they are tokens of an "
                     "Embedding.");
  }
}
}  // namespace

Tensor outputs_of(const Task& task, amp::Training& training, const data::Batch& batch) {
  if (!task.forward && !task.forward_batch)
    fail<UsageError>("Task", "the task has no forward. Give it that function.");
  const Tensor inputs = as_model(task, training, batch.inputs);
  if (!task.forward_batch)
    return with_integers_named(batch, [&] { return training.forward(task.forward, inputs); });
  const auto forward = [&](const Tensor& x_of_batch) {
    data::Batch shown{x_of_batch, batch.targets};
    for (const Tensor& x : batch.more)
      shown.more.push_back(training.as_input(as_model(task, training, x)));
    return task.forward_batch(shown);
  };
  return with_integers_named(batch, [&] { return training.forward(forward, inputs); });
}

Tensor loss_of(const Task& task, const Tensor& outputs, const data::Batch& batch) {
  if (!task.loss && !task.loss_of_batch)
    fail<UsageError>("Task", "the task has no loss. Give it that function.");
  const Tensor& given = batch.targets;
  // Floating targets have the dtype of the outputs: f32, or f64 under fp64.
  const bool other = given.defined() && outputs.defined() && given.dtype() != outputs.dtype() &&
                     (given.dtype() == f64 || given.dtype() == f32) &&
                     (outputs.dtype() == f64 || outputs.dtype() == f32);
  const Tensor targets = other ? cast(given, outputs.dtype()) : given;
  return task.loss ? task.loss(outputs, targets)
                   : task.loss_of_batch(outputs, {batch.inputs, targets, batch.more});
}

Tensor count_of(const Task& task, const data::Batch& batch) {
  if (task.count && batch.targets.defined()) return task.count(batch.targets);
  return scalar(double(batch.inputs.size(0)), f64, batch.inputs.device());
}

}  // namespace halftone::train
