// What a Trainer tells: to people on a line, to loggers in records, to a later run in checkpoints.
#include <halftone/train/trainer.h>

#include <algorithm>

#include <halftone/amp/names.h>
#include <halftone/train/checkpoints.h>
#include <halftone/train/environment.h>
#include <halftone/train/resume.h>

namespace halftone::train {

namespace fs = std::filesystem;

// --- records

void Trainer::log(std::string_view name, double value) {
  const auto same = std::ranges::find(record_, name, &std::pair<std::string, double>::first);
  if (same != record_.end()) same->second = value;
  else record_.emplace_back(name, value);
  metrics_.insert_or_assign(std::string(name), Logged{value, position_.step});
}

double Trainer::metric(std::string_view name) const {
  if (const auto found = metrics_.find(name); found != metrics_.end()) return found->second.value;
  std::vector<std::string_view> known;
  for (const auto& [other, logged] : metrics_) known.push_back(other);
  amp::fail_unknown_name("Trainer", "metric", name, known);
}

void Trainer::log_step() {
  log("train/loss", step_loss_.value());
  if (training_.scaler().enabled()) {
    log("train/loss_scale", training_.scaler().scale_value());
    log("train/skipped_steps", double(training_.skipped_steps()));
  }
  if (options_.clip_norm > 0) log("train/gradient_norm", gradient_norm_.item());
  for (const auto& callback : options_.callbacks) callback->on_log(*this);
}

void Trainer::write_record() {
  if (record_.empty()) return;
  std::vector<NamedNumber> numbers;
  for (const auto& [name, value] : record_) numbers.push_back({name, value});
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const LogRecord record{position_.step, std::chrono::duration<double>(now).count(), numbers};
  for (const auto& logger : loggers_) logger->log(record);
  record_.clear();
}

// --- people

void Trainer::show_progress(const Group& group) {
  if (!progress_) return;
  progress_->step(int64_t(group.samples), [this](const auto& show) {
    show("loss", epoch_loss_.value());
    if (options_.train_metrics)
      for (const TaskMetric& metric : task_.metrics)
        show(metric.name(), metric.value(), metric.shown());
    if (training_.scaler().enabled()) {
      show("scale", training_.scaler().scale_value(), Shown::count);
      show("skipped", double(training_.skipped_steps()), Shown::count);
    }
    const auto validated = metrics_.find("val/loss");
    if (validated != metrics_.end()) show("val loss", validated->second.value);
  });
}

void Trainer::note(std::string_view text) {
  if (progress_) progress_->note(text);
}

// --- checkpoints

double Trainer::seconds() const {
  return seconds_before_ + std::chrono::duration<double>(Clock::now() - start_).count();
}

void Trainer::save(const fs::path& path) const {
  CheckpointState state = position_;
  // Only what was measured at these very weights may rank this checkpoint among the best.
  for (const auto& [name, logged] : metrics_)
    if (logged.step == position_.step) state.numbers[name] = logged.value;
  state.numbers["state.batch_size"] = double(loader_ ? loader_->options().batch_size : 0);
  state.numbers["state.samples"] = double(loader_ ? loader_->dataset().size() : 0);
  state.numbers["state.seconds"] = seconds();
  const auto add = [&](const std::string& name, const MetricSums& sums) {
    state.numbers["state.total." + name] = sums.total;
    state.numbers["state.weight." + name] = sums.weight;
  };
  add("loss", epoch_loss_.sums());
  for (const TaskMetric& metric : task_.metrics) add(metric.name(), metric.sums());
  state.texts["environment"] = environment_of(device());
  for (const auto& callback : options_.callbacks) callback->save(state);
  save_training(path, training_, state, scheduler_ ? &*scheduler_ : nullptr);
}

void Trainer::restore(const CheckpointState& state) {
  position_ = {.step = state.step, .epoch = state.epoch, .batches = state.batches};
  const auto number = [&](const std::string& name) {
    const auto found = state.numbers.find("state." + name);
    return found == state.numbers.end() ? 0.0 : found->second;
  };
  const auto sums = [&](const std::string& name) {
    return MetricSums{number("total." + name), number("weight." + name)};
  };
  seconds_before_ = number("seconds");
  epoch_loss_.restore(sums("loss"));
  for (TaskMetric& metric : task_.metrics) metric.restore(sums(metric.name()));
  for (const auto& [name, value] : state.numbers)
    if (!name.starts_with("state.")) metrics_[name] = {value, state.step};
  for (const auto& callback : options_.callbacks) callback->load(state);
}

void Trainer::save_if_due(bool stepped, bool epoch_over) {
  const auto due = [](bool now, int64_t every, int64_t count) {
    return now && every > 0 && count % every == 0;
  };
  if (options_.directory.empty() || saved_step_ == position_.step) return;
  if (due(epoch_over, options_.checkpoints.every_epochs, position_.epoch) ||
      due(stepped, options_.checkpoints.every_steps, position_.step))
    save_in_directory();
}

void Trainer::save_in_directory() {
  const fs::path root = options_.directory / "checkpoints";
  const std::string name = checkpoint_name(position_.step);
  fs::path path = root / name;
  // A damaged one may still stand there; somebody may want to look at it.
  for (int i = 2; fs::exists(fs::symlink_status(path)); ++i)
    path = root / (name + "-" + std::to_string(i));
  save(path);
  saved_step_ = position_.step;
  remove_old_checkpoints();
}

void Trainer::remove_old_checkpoints() const {
  const CheckpointOptions& o = options_.checkpoints;
  keep(options_.directory / "checkpoints", {.last = o.keep_last,
                                            .best = o.keep_best,
                                            .metric = options_.monitor,
                                            .larger_is_better = options_.larger_is_better});
}

}  // namespace halftone::train
