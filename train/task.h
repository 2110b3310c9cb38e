// What is trained: a model, how its outputs are compared with the targets, and what is measured
// beside the loss. Lightning's training_step, taken apart, so that a Trainer can put a precision
// strategy between the parts.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include <halftone/autograd/ops/loss.h>
#include <halftone/data/dataset.h>
#include <halftone/nn/module.h>
#include <halftone/train/metrics.h>
#include <halftone/train/logging/status_line.h>

namespace halftone::train {

/// A batch that has been through the model.
struct Outcome {
  Tensor loss, outputs, targets;  // without history
  Tensor count;                   // what the loss is a mean over: f64 scalar
  std::vector<Tensor> more{};     // of the batch
};

/// A metric of metrics.h under a name, and how a batch updates it. Copies are independent.
class TaskMetric {
 public:
  /// update(metric, outcome) takes a batch in. Throws UsageError for one that is null.
  template <class Metric, class Update>
  TaskMetric(std::string name, Metric metric, Update update, Shown shown = Shown::number)
      : name_(std::move(name)),
        shown_(shown),
        held_(std::make_unique<Held<Metric, Update>>(std::move(metric), std::move(update))) {
    require_function(is_null(static_cast<const Held<Metric, Update>&>(*held_).how));
  }
  TaskMetric(const TaskMetric& other)
      : name_(other.name_), shown_(other.shown_), held_(other.held_->copy()) {}
  TaskMetric(TaskMetric&&) noexcept = default;
  TaskMetric& operator=(TaskMetric other) noexcept {
    name_ = std::move(other.name_), shown_ = other.shown_, held_ = std::move(other.held_);
    return *this;
  }
  ~TaskMetric() = default;

  void update(const Outcome& batch) { held_->update(batch); }
  /// Waits for a GPU.
  double value() const { return held_->value(); }
  void reset() { held_->reset(); }
  MetricSums sums() const { return held_->sums(); }
  void restore(const MetricSums& sums) { held_->restore(sums); }

  const std::string& name() const { return name_; }
  Shown shown() const { return shown_; }

 private:
  struct Any {
    virtual ~Any() = default;
    virtual void update(const Outcome& batch) = 0;
    virtual double value() const = 0;
    virtual void reset() = 0;
    virtual MetricSums sums() const = 0;
    virtual void restore(const MetricSums& sums) = 0;
    virtual std::unique_ptr<Any> copy() const = 0;
  };
  template <class Metric, class Update> struct Held final : Any {
    Metric metric;
    Update how;
    Held(Metric m, Update u) : metric(std::move(m)), how(std::move(u)) {}
    void update(const Outcome& batch) override { how(metric, batch); }
    double value() const override { return metric.value(); }
    void reset() override { metric.reset(); }
    MetricSums sums() const override { return metric.sums(); }
    void restore(const MetricSums& sums) override { metric.restore(sums); }
    std::unique_ptr<Any> copy() const override { return std::make_unique<Held>(metric, how); }
  };

  template <class Update> static bool is_null(const Update& update) {
    if constexpr (std::is_pointer_v<Update> || requires { update.target_type(); }) return !update;
    else return false;
  }
  void require_function(bool is_null) const;

  std::string name_;
  Shown shown_;
  std::unique_ptr<Any> held_;
};

struct Task {
  /// Must outlive whoever trains it.
  nn::Module& model;
  /// From a batch's inputs to outputs: runs as the strategy says, and its result is f32 (f64 under
  /// fp64).
  std::function<Tensor(const Tensor& inputs)> forward{};
  /// From outputs and the batch's targets to a mean, one floating number.
  std::function<Tensor(const Tensor& outputs, const Tensor& targets)> loss{};
  /// In the places of `forward` and `loss`, where they need more than inputs or targets:
  /// batch.more. Its floating tensors have the dtype that the strategy's inputs have.
  std::function<Tensor(const data::Batch& batch)> forward_batch{};
  std::function<Tensor(const Tensor& outputs, const data::Batch& batch)> loss_of_batch{};
  /// The number of things that the mean is over, an f64 scalar on the targets' device: what an
  /// epoch's mean weighs batches by. Empty: the batch's samples.
  std::function<Tensor(const Tensor& targets)> count{};
  /// Of a training's epochs and of validations, each under a name of its own; "loss" is taken.
  std::vector<TaskMetric> metrics{};
};

/// Logits [n, classes] against class numbers [n], or probabilities [n, classes] of which the
/// largest is the class: cross-entropy, and top-1 accuracy as "top1"; more by `top_k`. Means are
/// over the labels that are not ignored; with class weights, batches are weighed by their numbers
/// all the same.
struct ClassificationOptions {
  std::vector<int64_t> top_k{1};
  CrossEntropyOptions loss{};
};
/// `model` must outlive the task, here and below.
Task classification(nn::Layer& model, const ClassificationOptions& options = {});
/// Logits [n, length, vocabulary] against the next tokens [n, length], -100 where there is none:
/// cross-entropy per token, and "perplexity".
Task language_modeling(nn::Layer& model);
/// Outputs against targets of the same shape: the mean squared error.
struct RegressionOptions {
  bool mae = false, r2 = false;  // metrics of these names, over all elements
};
Task regression(nn::Layer& model, const RegressionOptions& options = {});
/// The same without a forward function, for modules of any inputs: give it one.
Task regression(nn::Module& model, const RegressionOptions& options = {});

}  // namespace halftone::train
