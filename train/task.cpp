// The built-in tasks: a loss, metrics, and errors for shapes that cannot be intended.
#include <halftone/train/task.h>

#include <algorithm>

#include <halftone/autograd/ops.h>
#include <halftone/autograd/slots.h>
#include <halftone/core/error.h>

namespace halftone::train {

namespace {
/// Returns the divisor of cross-entropy's mean, as an f64 scalar on the targets' device: the number
/// of class numbers that count, or the sum of their classes' weights. The loss, which comes later,
/// refuses other targets.
Tensor counted(const Tensor& targets, const CrossEntropyOptions& options) {
  const NoGrad no_grad;
  if (targets.dtype() != i64 && targets.dtype() != i32)
    return scalar(double(targets.numel()), f64, targets.device());
  if (targets.device() == Device::cpu() && targets.dtype() == i64 && !options.weight.defined()) {
    const Tensor numbers = views::contiguous(targets);
    const int64_t* const begin = numbers.data<int64_t>();
    const auto ignored = std::count(begin, begin + targets.numel(), options.ignore_index);
    return scalar(double(targets.numel() - ignored), f64);
  }
  const Tensor counts =
      not_equal(targets, scalar(options.ignore_index, targets.dtype(), targets.device()));
  if (!options.weight.defined()) return sum(cast(counts, f64));
  const Tensor none = scalar(0, targets.dtype(), targets.device());
  const Tensor classes =
      flatten(clamp(where(counts, targets, none), 0, options.weight.numel() - 1));
  const Tensor weights = index_select(cast(options.weight.detach(), f64), 0, classes);
  return sum(weights * cast(flatten(counts), f64));
}
}  // namespace

void TaskMetric::require_function(bool is_null) const {
  if (is_null)
    fail<UsageError>("TaskMetric", "the metric ", in_quotes(name_),
                     " has no function that takes a batch in. Give it one.");
}

Task classification(nn::Layer& model, const ClassificationOptions& options) {
  Task task = classification(static_cast<nn::Module&>(model), options);
  task.forward = [&model](const Tensor& inputs) { return model(inputs); };
  return task;
}

Task classification(nn::Module& model, const ClassificationOptions& options) {
  if (options.loss.reduction != LossReduction::mean)
    fail<UsageError>("classification",
                     "the loss is not a mean, so losses of several batches cannot be joined. Use "
                     "LossReduction::mean.");
  Task task{.model = model};
  task.loss = [loss = options.loss](const Tensor& logits, const Tensor& labels) {
    return cross_entropy(logits, labels, loss);
  };
  task.count = [loss = options.loss](const Tensor& labels) {
    if (!is_floating(labels.dtype())) return counted(labels, loss);
    const int64_t classes = labels.rank() > 1 ? labels.size(1) : labels.numel();
    return scalar(double(labels.numel()) / double(std::max<int64_t>(classes, 1)), f64,
                  labels.device());
  };
  const auto update = [](TopKAccuracy& accuracy, const Outcome& batch) {
    const bool probabilities = is_floating(batch.targets.dtype());
    accuracy.update(batch.outputs, probabilities ? argmax(batch.targets, -1) : batch.targets);
  };
  for (const int64_t k : options.top_k)
    task.metrics.emplace_back("top" + std::to_string(k), TopKAccuracy(k, options.loss.ignore_index),
                              update, Shown::percent);
  return task;
}

Task language_modeling(nn::Layer& model) {
  Task task = language_modeling(static_cast<nn::Module&>(model));
  task.forward = [&model](const Tensor& tokens) { return model(tokens); };
  return task;
}

Task language_modeling(nn::Module& model) {
  Task task{.model = model};
  task.loss = [](const Tensor& logits, const Tensor& next) {
    if (logits.rank() != 3 || next.rank() != 2 || logits.size(0) != next.size(0) ||
        logits.size(1) != next.size(1))
      fail<ShapeError>("language_modeling", "the logits are ", described(logits),
                       ", the next tokens ", described(next),
                       ". They must be [n, length, vocabulary] and [n, length].");
    return cross_entropy(flatten(logits, 0, 1), flatten(next));
  };
  task.count = [](const Tensor& next) { return counted(next, {}); };
  task.metrics.emplace_back(
      "perplexity", Perplexity(),
      [](Perplexity& metric, const Outcome& batch) { metric.update(batch.loss, batch.count); });
  return task;
}

Task regression(nn::Layer& model, const RegressionOptions& options) {
  Task task = regression(static_cast<nn::Module&>(model), options);
  task.forward = [&model](const Tensor& inputs) { return model(inputs); };
  return task;
}

Task regression(nn::Module& model, const RegressionOptions& options) {
  Task task{.model = model};
  task.loss = [](const Tensor& outputs, const Tensor& targets) { return mse(outputs, targets); };
  task.count = [](const Tensor& targets) {
    return scalar(double(targets.numel()), f64, targets.device());
  };
  const auto update = [](auto& metric, const Outcome& batch) {
    const bool numbers = is_floating(batch.targets.dtype());
    metric.update(batch.outputs,
                  numbers ? batch.targets : cast(batch.targets, batch.outputs.dtype()));
  };
  if (options.mae) task.metrics.emplace_back("mae", MeanAbsoluteError(), update);
  if (options.r2) task.metrics.emplace_back("r2", R2Score(), update);
  return task;
}

}  // namespace halftone::train
