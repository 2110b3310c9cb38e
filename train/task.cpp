#include <halftone/train/task.h>

#include <halftone/autograd/ops.h>

namespace halftone::train {

Task classification(nn::Layer& model, const ClassificationOptions& options) {
  Task task{.model = model,
            .forward = [&model](const Tensor& inputs) { return model(inputs); },
            .loss = [loss = options.loss](
                        const Tensor& logits,
                        const Tensor& labels) { return cross_entropy(logits, labels, loss); }};
  const auto update = [](TopKAccuracy& accuracy, const Outcome& batch) {
    accuracy.update(batch.outputs, batch.targets);
  };
  for (const int64_t k : options.top_k)
    task.metrics.emplace_back("top" + std::to_string(k), TopKAccuracy(k, options.loss.ignore_index),
                              update, Shown::percent);
  return task;
}

Task language_modeling(nn::Layer& model) {
  Task task{.model = model,
            .forward = [&model](const Tensor& tokens) { return model(tokens); },
            .loss =
                [](const Tensor& logits, const Tensor& next) {
                  return cross_entropy(flatten(logits, 0, 1), flatten(next));
                },
            .count = [](const Tensor& next) { return double(next.numel()); }};
  task.metrics.emplace_back(
      "perplexity", Perplexity(),
      [](Perplexity& metric, const Outcome& batch) { metric.update(batch.loss, batch.samples); });
  return task;
}

Task regression(nn::Layer& model) {
  return {
      .model = model,
      .forward = [&model](const Tensor& inputs) { return model(inputs); },
      .loss = [](const Tensor& outputs, const Tensor& targets) { return mse(outputs, targets); }};
}

}  // namespace halftone::train
