#include <halftone/train/trainer.h>

#include <algorithm>

#include <signal.h>

#include <halftone/autograd/grad_mode.h>
#include <halftone/autograd/ops.h>
#include <halftone/train/stop_signals.h>

namespace halftone::train {

namespace {

/// Evaluation for a scope: afterwards each module is in the mode it was in, frozen ones included,
/// and random numbers go on as if nothing had been drawn.
class Evaluation {
 public:
  explicit Evaluation(nn::Module& model) : random_(default_generator().state()) {
    for (const auto& [name, module] : model.named_modules())
      modes_.emplace_back(module, module->training);
    model.eval();
  }
  ~Evaluation() {
    for (const auto& [module, training] : modes_) module->training = training;
    default_generator().set_state(random_);
  }
  Evaluation(const Evaluation&) = delete;
  Evaluation& operator=(const Evaluation&) = delete;

 private:
  NoGrad no_grad_{};
  RandomKey random_;
  std::vector<std::pair<nn::Module*, bool>> modes_{};
};

bool divides(int64_t every, int64_t count) { return every > 0 && count % every == 0; }

}  // namespace

Trainer::Trainer(Task task, optim::Optimizer& optimizer, TrainerOptions options)
    : task_(std::move(task)),
      options_(effective(std::move(options))),
      training_(amp::apply(strategy_of(options_), task_.model, optimizer)) {}

FitResult Trainer::fit(data::DataLoader train, std::optional<data::DataLoader> validation) {
  start_ = Clock::now(), samples_ = 0, reason_.clear();
  int signal = 0;
  FitResult result;
  {
    const StopSignals signals;
    arrange(std::move(train), std::move(validation));
    for (const auto& callback : options_.callbacks) callback->on_fit_start(*this);
    check_limits();
    while (reason_.empty()) run_epoch();
    result = finish();
    signal = result.signal = StopSignals::received();
  }
  if (signal != 0 && options_.exit_on_signal) raise(signal);
  return result;
}

void Trainer::run_epoch() {
  if (progress_)
    progress_->begin_epoch(position_.epoch + 1, position_.batches / options_.accumulate_batches);
  loader_->resume(position_.epoch, position_.batches);
  data::DataLoader::Iterator next = loader_->begin();
  while (reason_.empty() && position_.batches < batches_) {
    const bool stepped = run_group(next), epoch_over = position_.batches == batches_;
    if (stepped) end_step();
    if (epoch_over) end_epoch();
    const bool validates = epoch_over && divides(options_.validate_every_epochs, position_.epoch);
    if (validates || (stepped && divides(options_.validate_every_steps, position_.step)))
      run_validation();
    if (epoch_over)
      for (const auto& callback : options_.callbacks) callback->on_epoch_end(*this);
    write_record();
    save_if_due(stepped, epoch_over);
    check_limits();
    if (epoch_over) return;
  }
}

Trainer::Group Trainer::group_at(int64_t first_batch) const {
  const int64_t end = std::min(first_batch + options_.accumulate_batches, batches_),
                size = loader_->options().batch_size;
  const int64_t samples = std::min(end * size, loader_->dataset().size()) - first_batch * size;
  return {end - first_batch, double(samples)};
}

/// One step, from its batches to its update. False if a callback dropped it.
bool Trainer::run_group(data::DataLoader::Iterator& next) {
  const Group group = group_at(position_.batches);
  training_.zero_grad();
  step_loss_.reset();
  bool accepted = true;
  for (int64_t i = 0; i < group.batches; ++i, ++next, ++position_.batches)
    accepted = accepted && accumulate(*next, group);
  if (accepted) update();
  else training_.zero_grad();
  samples_ += group.samples;
  show_progress(group);
  return accepted;
}

/// Adds a batch's gradients to those of its step. False if a callback refused its loss.
bool Trainer::accumulate(data::Batch batch, const Group& group) {
  for (const auto& callback : options_.callbacks) callback->on_batch_start(*this, batch);
  const auto samples = double(batch.inputs.size(0));
  const Tensor outputs = training_.forward(task_.forward, batch.inputs);
  const Tensor loss = task_.loss(outputs, batch.targets);
  const bool accepted = std::ranges::all_of(
      options_.callbacks, [&](const auto& callback) { return callback->on_loss(*this, loss); });
  if (!accepted) return false;
  training_.backward(samples == group.samples ? loss : loss * (samples / group.samples));

  step_loss_.update(loss, samples);
  const double count = task_.count ? task_.count(batch.targets) : samples;
  epoch_loss_.update(loss, count);
  if (options_.train_metrics) {
    const Outcome outcome{loss.detach(), outputs.detach(), batch.targets, count};
    for (TaskMetric& metric : task_.metrics) metric.update(outcome);
  }
  return true;
}

void Trainer::update() {
  if (options_.clip_norm > 0) gradient_norm_ = training_.clip_grad_norm(options_.clip_norm);
  if (options_.clip_value > 0) training_.clip_grad_value(options_.clip_value);
  const amp::Stepped stepped = training_.step();
  ++position_.step;
  if (scheduler_ && stepped) scheduler_->step();  // without a schedule nobody waits to know
}

void Trainer::end_step() {
  if (divides(options_.log_every_steps, position_.step)) log_step();
  for (const auto& callback : options_.callbacks) callback->on_step_end(*this);
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

// --- validation

void Trainer::run_validation() {
  if (!validation_) return;
  std::string line = "  validation";
  for (const auto& [name, value] : measure(*validation_, validation_batches_)) {
    log("val/" + name, value);
    char text[64];
    std::snprintf(text, sizeof text, "  %s %.4f", name.c_str(), value);
    line += text;
  }
  note(line);
  for (const auto& callback : options_.callbacks) callback->on_validation_end(*this);
}

std::map<std::string, double> Trainer::validate(data::DataLoader loader) {
  return measure(loader, loader.size());
}

std::map<std::string, double> Trainer::measure(data::DataLoader& loader, int64_t limit) {
  const Evaluation scope(task_.model);
  RunningMean loss_mean;
  std::vector<TaskMetric> metrics = task_.metrics;
  for (TaskMetric& metric : metrics) metric.reset();
  loader.set_epoch(0);  // the same samples in the same order, each time
  auto next = loader.begin();
  for (int64_t i = 0; i < limit && next != loader.end(); ++i, ++next) {
    const auto& [inputs, targets] = *next;
    const Tensor outputs = training_.forward(task_.forward, inputs);
    const Tensor loss = task_.loss(outputs, targets);
    const double count = task_.count ? task_.count(targets) : double(inputs.size(0));
    loss_mean.update(loss, count);
    for (TaskMetric& metric : metrics) metric.update({loss, outputs, targets, count});
  }
  std::map<std::string, double> values{{"loss", loss_mean.value()}};
  for (const TaskMetric& metric : metrics) values[metric.name()] = metric.value();
  return values;
}

// --- the end

void Trainer::check_limits() {
  if (!reason_.empty()) return;
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
  write_record();
  if (!options_.directory.empty() && saved_step_ != position_.step) save_in_directory();
  for (const auto& logger : loggers_) logger->flush();
  if (progress_) progress_->finish();
  FitResult result{
      .reason = reason_, .steps = position_.step, .epochs = position_.epoch, .seconds = seconds()};
  for (const auto& [name, logged] : metrics_) result.metrics[name] = logged.value;
  seconds_before_ = seconds(), start_ = Clock::now();
  return result;
}

}  // namespace halftone::train
