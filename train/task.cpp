// The built-in tasks: a loss, metrics, and errors for shapes that cannot be intended.
#include <halftone/train/task.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

#include <cxxabi.h>

#include <halftone/autograd/ops.h>
#include <halftone/autograd/slots.h>
#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/amp/policy.h>

namespace halftone::train {

std::string class_name(const std::type_info& type) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(type.name(), nullptr, nullptr, &status), std::free);
  if (status != 0) return type.name();
  const std::string whole = name.get();
  const auto colon = whole.rfind(':', whole.find('<'));
  return colon == std::string::npos ? whole : whole.substr(colon + 1);
}

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

// Calls a task's functions of inputs and targets, or of whole batches.

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

// Maps words for precisions, such as Lightning's, to strategies.

namespace {
struct Word {
  std::string_view precision, strategy;
};
constexpr Word words[] = {{"64-true", "fp64"},      {"32-true", "fp32"},
                          {"16-mixed", "amp-fp16"}, {"bf16-mixed", "amp-bf16"},
                          {"16-true", "o3-fp16"},   {"bf16-true", "full-bf16"}};
}  // namespace

amp::Policy strategy_for(std::string_view precision) {
  const auto word = std::ranges::find(words, precision, &Word::precision);
  if (word != std::end(words)) return amp::Policy::named(word->strategy);
  if (precision.ends_with(".json")) return policy::read(precision);
  const auto names = amp::Policy::names();
  if (std::ranges::find(names, precision) != names.end()) return amp::Policy::named(precision);
  std::vector<std::string_view> known;
  for (const Word& w : words) known.push_back(w.precision);
  known.insert(known.end(), names.begin(), names.end());
  fail_unknown_name("Trainer", "precision", precision, known);
}

Evaluation::Evaluation(nn::Module& model) : random_(default_generator().state()) {
  for (const auto& [name, module] : model.named_modules())
    modes_.emplace_back(module, module->training);
  model.eval();
}

Evaluation::~Evaluation() {  // copies within existing memory, so it cannot fail
  for (const auto& [module, training] : modes_) module->training = training;
  default_generator().set_state(random_);
}

}  // namespace halftone::train
