// The loop: epochs of steps, each of one or several batches, and what follows each of them.
#include <halftone/train/trainer.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <set>

#include <signal.h>

#include <halftone/autograd/ops.h>
#include <halftone/train/evaluation.h>
#include <halftone/train/stop_signals.h>

namespace halftone::train {

namespace {

bool divides(int64_t every, int64_t count) { return every > 0 && count % every == 0; }

Task checked(Task task) {
  if (!task.forward || !task.loss)
    fail<UsageError>("Trainer", "the task has no ", task.forward ? "loss" : "forward",
                     ". Give it that function.");
  std::set<std::string> names{"loss"};
  for (const TaskMetric& metric : task.metrics)
    if (metric.name().empty() || !names.insert(metric.name()).second)
      fail<UsageError>("Trainer", "no second metric can be named \"", metric.name(),
                       "\". Choose another name.");
  return task;
}

}  // namespace

Trainer::Trainer(Task task, optim::Optimizer& optimizer, TrainerOptions options)
    : task_(checked(std::move(task))),
      options_(effective(std::move(options))),
      training_(amp::apply(strategy_of(options_), task_.model, optimizer)) {}

FitResult Trainer::fit(data::DataLoader train, std::optional<data::DataLoader> validation) {
  FitResult result;
  {
    const StopSignals signals;
    const Stopwatch running(*this);
    set_up(std::move(train), std::move(validation));
    for (const auto& callback : options_.callbacks) callback->on_fit_start(*this);
    if (validation_interrupted_) run_validation();
    check_limits();
    while (!stopping_) run_epoch();
    result = finish();
    result.signal = StopSignals::received();
  }
  if (result.signal != 0 && options_.exit_on_signal) {
    std::cout.flush(), std::fflush(nullptr);  // the process is about to end without that
    raise(result.signal);
  }
  return result;
}

void Trainer::run_epoch() {
  // Nothing is left of it where a resumed run has a lower limit, or a callback threw at its end.
  if (position_.batches >= batches_) return follow_up(false);
  if (progress_)
    progress_->begin_epoch(position_.epoch + 1, position_.batches / options_.accumulate_batches);
  loader_->resume(position_.epoch, position_.batches);
  data::DataLoader::Iterator next = loader_->begin();
  for (const int64_t epoch = position_.epoch; !stopping_ && position_.epoch == epoch;)
    follow_up(run_group(next));
}

// --- a step

/// The batches of the step that begins at one, and their samples.
Trainer::Group Trainer::group_at(int64_t first_batch) const {
  const int64_t count = std::min(options_.accumulate_batches, batches_ - first_batch),
                size = loader_->options().batch_size;
  const int64_t end = std::min((first_batch + count) * size, loader_->dataset().size());
  return {count, double(end - first_batch * size)};
}

/// One step, from its batches to its update. False if a callback dropped it.
bool Trainer::run_group(data::DataLoader::Iterator& next) {
  const Group group = group_at(position_.batches);
  std::optional<HeldBuffers> buffers;
  if (std::ranges::any_of(options_.callbacks, [](const auto& c) { return c->drops_steps(); }))
    buffers.emplace(task_.model);
  training_.zero_grad();
  step_loss_.reset();
  bool accepted = true;
  for (int64_t i = 0; i < group.batches; ++i) {
    accepted = accepted && accumulate(*next, group);
    if (position_.batches + i + 1 < batches_) ++next;  // what is behind a limit is not fetched
  }
  if (accepted) update();
  else training_.zero_grad();
  if (accepted && buffers) buffers->release();
  position_.batches += group.batches;
  samples_ += group.samples;
  show_progress(group);
  return accepted;
}

/// Adds a batch's gradients to those of its step. False if a callback refused its loss.
bool Trainer::accumulate(data::Batch batch, const Group& group) {
  const int64_t size = batch.inputs.size(0);
  for (const auto& callback : options_.callbacks) callback->on_batch_start(*this, batch);
  if (batch.inputs.size(0) != size)
    fail<UsageError>("Trainer", "a callback made a batch of ", size, " samples one of ",
                     batch.inputs.size(0), ". Keep their number.");
  const Tensor outputs = training_.forward(task_.forward, batch.inputs);
  const Tensor loss = task_.loss(outputs, batch.targets);
  for (const auto& callback : options_.callbacks)
    if (!callback->on_loss(*this, loss)) {
      if (!callback->drops_steps())
        fail<UsageError>("Trainer", "a callback dropped a step, but its drops_steps() is false. ",
                         "Let it say true, so that buffers are kept.");
      return false;
    }
  const auto samples = double(size);
  training_.backward(samples == group.samples ? loss : loss * (samples / group.samples));

  step_loss_.update(loss, samples);
  const Outcome outcome{loss.detach(), outputs.detach(), batch.targets, count_of(batch)};
  epoch_loss_.update(loss, outcome.count);
  if (options_.train_metrics)
    for (TaskMetric& metric : task_.metrics) metric.update(outcome);
  return true;
}

Tensor Trainer::count_of(const data::Batch& batch) const {
  if (task_.count) return task_.count(batch.targets);
  return scalar(double(batch.inputs.size(0)), f64, batch.inputs.device());
}

void Trainer::update() {
  if (options_.clip_norm > 0)
    gradient_norm_ = training_.clip_grad_norm(options_.clip_norm, options_.clip_norm_type);
  if (options_.clip_value > 0) training_.clip_grad_value(options_.clip_value);
  const amp::Stepped stepped = training_.step();
  ++position_.step;
  if (scheduler_ && stepped) scheduler_->step();  // without a schedule nobody waits to know
}

// --- what follows a step, or one that was dropped

void Trainer::follow_up(bool stepped) {
  const bool epoch_over = position_.batches >= batches_;
  if (stepped && divides(options_.log_every_steps, position_.step)) log_step();
  if (epoch_over) end_epoch();
  if ((epoch_over && divides(options_.validate_every_epochs, position_.epoch)) ||
      (stepped && divides(options_.validate_every_steps, position_.step)))
    run_validation();
  if (stepped)
    for (const auto& callback : options_.callbacks) callback->on_step_end(*this);
  if (epoch_over)
    for (const auto& callback : options_.callbacks) callback->on_epoch_end(*this);

  const bool saves = !options_.directory.empty() &&
                     ((epoch_over && divides(options_.checkpoints.every_epochs, position_.epoch)) ||
                      (stepped && divides(options_.checkpoints.every_steps, position_.step)));
  record_and_save(saves);
  check_limits();
}

void Trainer::end_epoch() {
  log("train/loss_epoch", epoch_loss_.value());
  epoch_loss_.reset();
  for (TaskMetric& metric : task_.metrics) {
    if (options_.train_metrics) log("train/" + metric.name() + "_epoch", metric.value());
    metric.reset();
  }
  ++position_.epoch, position_.batches = 0;
  log("epoch", double(position_.epoch));
}

void Trainer::check_limits() {
  if (stopping_) return;
  if (const int signal = StopSignals::received(); signal != 0)
    return stop(signal == SIGINT ? "interrupted (SIGINT)" : "terminated (SIGTERM)");
  const int64_t steps = options_.max_steps, epochs = options_.max_epochs;
  if (steps > 0 && position_.step >= steps) return stop("max_steps is reached");
  if (epochs > 0 && position_.epoch >= epochs) return stop("max_epochs is reached");
  if (options_.max_time.count() > 0 && seconds() >= options_.max_time.count())
    return stop("max_time is over");
}

FitResult Trainer::finish() {
  for (const auto& callback : options_.callbacks) callback->on_fit_end(*this);
  record_and_save(!options_.directory.empty());
  for (const auto& logger : loggers_) logger->flush();
  if (progress_) progress_->finish();
  FitResult result{
      .reason = reason_, .steps = position_.step, .epochs = position_.epoch, .seconds = seconds()};
  for (const auto& [name, logged] : metrics_) result.metrics[name] = logged.value;
  return result;
}

// --- validation

bool Trainer::validates() const {
  return validation_ && (options_.validate_every_epochs > 0 || options_.validate_every_steps > 0);
}

/// A signal interrupts it: then it is made up for by the run that resumes.
void Trainer::run_validation() {
  if (!validation_) return;
  const auto values = evaluate(*validation_, validation_batches_, true);
  validation_interrupted_ = !values;
  if (!values) return;
  std::string line = "  validation";
  for (const auto& [name, value] : *values) {
    log("val/" + name, value);
    char text[64];
    std::snprintf(text, sizeof text, "  %.40s %.4f", name.c_str(), value);
    line += text;
  }
  note(line);
  for (const auto& callback : options_.callbacks) callback->on_validation_end(*this);
}

std::map<std::string, double> Trainer::validate(data::DataLoader loader) {
  return *evaluate(loader, loader.size(), false);
}

std::optional<std::map<std::string, double>> Trainer::evaluate(data::DataLoader& loader,
                                                               int64_t batches,
                                                               bool interruptible) {
  const Evaluation scope(task_.model);
  RunningMean loss_mean;
  std::vector<TaskMetric> metrics = task_.metrics;
  for (TaskMetric& metric : metrics) metric.reset();
  loader.set_epoch(0);  // the same samples in the same order, each time
  auto next = loader.begin();
  for (int64_t i = 0; i < batches; ++i) {
    if (interruptible && StopSignals::received() != 0) return std::nullopt;
    const Tensor outputs = training_.forward(task_.forward, next->inputs);
    const Tensor loss = task_.loss(outputs, next->targets);
    const Outcome outcome{loss, outputs, next->targets, count_of(*next)};
    loss_mean.update(loss, outcome.count);
    for (TaskMetric& metric : metrics) metric.update(outcome);
    if (i + 1 < batches) ++next;
  }
  std::map<std::string, double> values{{"loss", loss_mean.value()}};
  for (const TaskMetric& metric : metrics) values[metric.name()] = metric.value();
  return values;
}

}  // namespace halftone::train
