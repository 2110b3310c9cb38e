// Tasks: a model with its loss and metrics.
#pragma once

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include <halftone/amp/policy.h>
#include <halftone/amp/training.h>
#include <halftone/autograd/ops/loss.h>
#include <halftone/autograd/slots.h>
#include <halftone/core/random.h>
#include <halftone/data/data_loader.h>
#include <halftone/nn/module.h>
#include <halftone/train/metrics.h>
#include <halftone/train/progress.h>

namespace halftone::train {

// The name of an object's class as in its source.

/// Returns the name of a class without namespaces: "BatchNorm1d".
std::string class_name(const std::type_info& type);

// The words for a precision: PyTorch Lightning's, and the names of strategies.
//
//   64-true    fp64       everything in f64
//   32-true    fp32       everything in f32
//   16-mixed   amp-fp16   f32 weights, autocast to f16, dynamic loss scale
//   bf16-mixed amp-bf16   f32 weights, autocast to bf16
//   16-true    o3-fp16    f16 weights (optimizer state stays f32: f16 would underflow)
//   bf16-true  full-bf16  bf16 weights and optimizer state

/// Returns the strategy for a word of the table above ("bf16-mixed"), a strategy's own name
/// ("o2-bf16") or a policy file ("x.json"). Throws UsageError for others, with the nearest word.
amp::Policy strategy_for(std::string_view precision);

// A task: a model, the comparison of its outputs with the targets, and the metrics besides the
// loss. It is Lightning's training_step split into parts, so that the Trainer can apply a strategy
// between them.

/// A batch after its forward pass, as metrics see it.
struct Outcome {
  Tensor loss, outputs, targets;  // without gradient history
  Tensor count;                   // Task::count's result: f64 scalar
  std::vector<Tensor> more{};     // the batch's `more`
};

/// A metric, such as one of metrics.h, its name, and the function that updates it. Copies are deep.
class TaskMetric {
 public:
  /// update(metric, outcome) must add a batch to `metric`. Throws UsageError if `update` is null.
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
  /// The model must outlive the Trainer.
  nn::Module& model;
  /// Maps a batch's inputs to outputs. f64 inputs become f32, unless the model has f64 weights. It
  /// runs under the strategy, and its result becomes f32 (f64 under fp64).
  std::function<Tensor(const Tensor& inputs)> forward{};
  /// Maps outputs and the batch's targets to the mean loss, a floating tensor of one element. f32
  /// and f64 targets are first converted to the outputs' dtype.
  std::function<Tensor(const Tensor& outputs, const Tensor& targets)> loss{};
  /// Set these instead of `forward` or `loss` for a model or a loss that needs batch.more. Floating
  /// tensors of batch.more are first converted to the dtype of the strategy's inputs.
  std::function<Tensor(const data::Batch& batch)> forward_batch{};
  std::function<Tensor(const Tensor& outputs, const data::Batch& batch)> loss_of_batch{};
  /// Returns the divisor of the loss's mean, an f64 scalar on the targets' device: the number of
  /// its terms, or the sum of their weights. The Trainer weights each batch by its divisor when it
  /// averages over the batches of a step, an epoch or a validation, also over several processes:
  /// the result is the mean over all terms. Empty: the number of the batch's samples.
  std::function<Tensor(const Tensor& targets)> count{};
  /// Metrics of training epochs and of validations, each with a unique name other than "loss".
  std::vector<TaskMetric> metrics{};
};

/// Options of classification(). Each number in top_k gives a metric, such as "top1".
struct ClassificationOptions {
  std::vector<int64_t> top_k{1};
  CrossEntropyOptions loss{};
};
/// Returns a task that compares logits [n, classes] with class numbers [n] or probabilities [n,
/// classes]. The loss is cross-entropy. The metrics are top-k accuracies, for which the most
/// probable class is the target. Means leave out ignored labels and use class weights, if any.
/// Throws UsageError if the loss is not a mean. `model` must outlive the task, here and below.
Task classification(nn::Layer& model, const ClassificationOptions& options = {});
/// Returns the same task without a forward function, for modules with other inputs: set `forward`
/// or, for two inputs, `forward_batch`.
Task classification(nn::Module& model, const ClassificationOptions& options = {});
/// Returns a task that compares logits [n, length, vocabulary] with the next tokens [n, length] (or
/// -100, ignored). The loss is the mean cross-entropy per token, the metric is "perplexity".
Task language_modeling(nn::Layer& model);
/// Returns the same task without a forward function: set `forward` or `forward_batch`.
Task language_modeling(nn::Module& model);
/// Options of regression().
struct RegressionOptions {
  bool mae = false, r2 = false;  // adds the metrics "mae" and "r2", over all elements
};
/// Returns a task that compares outputs with targets of the same shape. The loss is mse().
Task regression(nn::Layer& model, const RegressionOptions& options = {});
/// Returns the same task without a forward function: set `forward` or `forward_batch`.
Task regression(nn::Module& model, const RegressionOptions& options = {});

// Runs a task's functions on a batch as a training does.

/// Returns the task's outputs for a batch, computed under the training's strategy.
Tensor outputs_of(const Task& task, amp::Training& training, const data::Batch& batch);
/// Returns the mean loss of a batch's outputs.
Tensor loss_of(const Task& task, const Tensor& outputs, const data::Batch& batch);

/// Returns the divisor of the batch's mean loss, an f64 scalar: from Task::count, or the samples.
Tensor count_of(const Task& task, const data::Batch& batch);

// Two guards for forward passes that must not change a model.

/// While an object exists, no gradients are recorded and every module is in evaluation mode. The
/// destructor restores the mode that each module had, and the state of the default generator.
class Evaluation {
 public:
  /// The model must outlive this.
  explicit Evaluation(nn::Module& model);
  ~Evaluation();
  Evaluation(const Evaluation&) = delete;
  Evaluation& operator=(const Evaluation&) = delete;

 private:
  NoGrad no_grad_{};
  RandomKey random_;
  std::vector<std::pair<nn::Module*, bool>> modes_{};
};

/// Copies a model's buffers. The destructor restores them, unless release() was called before.
class HeldBuffers {
 public:
  explicit HeldBuffers(const nn::Module& model) : copies_(model) {}
  ~HeldBuffers() { copies_.restore(); }
  HeldBuffers(const HeldBuffers&) = delete;
  HeldBuffers& operator=(const HeldBuffers&) = delete;
  void release() { copies_ = {}; }

 private:
  nn::BufferCopies copies_;
};

}  // namespace halftone::train
