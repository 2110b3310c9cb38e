// Validation and prediction: passes in evaluation mode, which change neither model nor generator.
#include <halftone/train/training_loop.h>

#include <algorithm>

#include <halftone/autograd/ops.h>
#include <halftone/train/evaluation.h>
#include <halftone/train/stop_signals.h>
#include <halftone/train/task_steps.h>

namespace halftone::train {

bool TrainingLoop::validates() const {
  return validation_ && (options_.validate_every_epochs > 0 || options_.validate_every_steps > 0);
}

/// Returns false if a signal interrupted the validation.
bool TrainingLoop::run_validation() {
  if (!validation_) return true;
  const auto values = evaluate(*validation_, validation_batches_, true);
  if (!values) return false;
  std::string line = "  validation";
  for (const auto& [name, value] : *values) {
    log(name, value);
    const std::string own = name.substr(std::string_view("val/").size());
    const auto metric = std::ranges::find(task_.metrics, own, &TaskMetric::name);
    const Shown shown = metric == task_.metrics.end() ? Shown::number : metric->shown();
    line += "  " + own + ' ' + shown_text(value, shown);
  }
  note(line);
  return left_.validated = true;
}

MetricValues TrainingLoop::validate(data::DataLoader loader) {
  return *evaluate(loader, loader.size(), false);
}

Tensor TrainingLoop::predict(data::DataLoader loader) {
  if (loader.options().shuffle)
    fail<UsageError>("Trainer.predict",
                     "the loader shuffles, so the order of the outputs would not be "
                     "that of the samples. Pass a loader without shuffle.");
  const Evaluation scope(task_.model);
  loader.set_epoch(0);
  std::vector<Tensor> outputs;
  for (const data::Batch& batch : loader) outputs.push_back(outputs_of(task_, training_, batch));
  if (outputs.empty())
    fail<UsageError>("Trainer.predict",
                     "the loader has no batch. Turn drop_last off, or give it "
                     "samples.");
  return cat(outputs, 0);
}

std::optional<std::map<std::string, double>> TrainingLoop::evaluate(data::DataLoader& loader,
                                                                    int64_t batches,
                                                                    bool interruptible) {
  const Evaluation scope(task_.model);
  std::vector<std::shared_ptr<void>> held;
  each_callback([&](Callback& callback) { held.push_back(callback.during_validation(trainer_)); });
  RunningMean loss_mean;
  std::vector<TaskMetric> metrics = task_.metrics;
  for (TaskMetric& metric : metrics) metric.reset();
  // All ranks read the same samples in the same order. Each rank takes one batch of every
  // `ranks()`.
  data::DataLoaderOptions shared = loader.options();
  shared.share = {.rank = rank(), .of = ranks(), .group = ranks()};
  data::DataLoader own = loader.with_options(shared);
  auto next = own.begin();
  bool interrupted = false;
  for (int64_t i = rank(); i < batches; i += ranks()) {
    interrupted = interruptible && StopSignals::received() != 0;
    if (interrupted) break;
    const Tensor outputs = outputs_of(task_, training_, *next);
    const Tensor loss = loss_of(task_, outputs, *next);
    const Outcome outcome{loss, outputs, next->targets, count_of(task_, *next), next->more};
    loss_mean.update(loss, outcome.count);
    for (TaskMetric& metric : metrics) metric.update(outcome);
    if (i + ranks() < batches) ++next;
  }
  if (!all_accept(!interrupted)) return std::nullopt;
  std::map<std::string, double> values{{"val/loss", value_of_all(loss_mean)}};
  for (const TaskMetric& metric : metrics) values["val/" + metric.name()] = value_of_all(metric);
  return values;
}

}  // namespace halftone::train
