// What a Trainer tells: to people on a line, to loggers in records, to a later run in checkpoints.
#include <halftone/train/trainer.h>

#include <algorithm>
#include <exception>

#include <halftone/core/names.h>
#include <halftone/train/checkpoints.h>
#include <halftone/train/class_name.h>
#include <halftone/train/environment.h>
#include <halftone/train/for_people.h>
#include <halftone/train/numbers.h>
#include <halftone/train/resume.h>
#include <halftone/train/stop_signals.h>

namespace halftone::train {

namespace fs = std::filesystem;

// --- records

void Trainer::log(std::string_view name, double value) {
  check_log_name(name);
  const auto same = std::ranges::find(record_, name, &std::pair<std::string, double>::first);
  if (same != record_.end()) same->second = value;
  else record_.emplace_back(name, value);
  metrics_.insert_or_assign(std::string(name), Logged{value, position_.step});
}

double Trainer::metric(std::string_view name) const {
  if (const auto found = metrics_.find(name); found != metrics_.end()) return found->second.value;
  std::vector<std::string_view> known;
  for (const auto& [other, logged] : metrics_) known.push_back(other);
  fail_unknown_name("Trainer", "metric", name, known);
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

/// A log that cannot be written costs no checkpoint. What is logged up to a checkpoint is in the
/// files before it is, so that no kill makes a hole.
void Trainer::record_and_save(bool saves) {
  saves = saves && saved_ != place();
  std::exception_ptr failure;
  try {
    write_record();
    if (saves)
      for (const auto& logger : loggers_) logger->flush();
  } catch (...) { failure = std::current_exception(); }
  if (saves) save_in_directory();
  if (failure) std::rethrow_exception(failure);
}

void Trainer::write_record() {
  if (record_.empty()) return;
  const auto record = std::exchange(record_, {});
  std::vector<NamedNumber> numbers;
  numbers.reserve(record.size());
  for (const auto& [name, value] : record) numbers.push_back({name, value});
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  for (const auto& logger : loggers_)
    logger->log({position_.step, std::chrono::duration<double>(now).count(), numbers});
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

void Trainer::tell(const std::string& text) {
  if (progress_) progress_->note(text);
  else print_for_people(stderr, text + '\n');
}

void Trainer::say_what_was_saved(int signal) {
  const std::string what = StopSignals::meaning(signal);
  if (saved_ == place()) tell(what + ": saved " + saved_path_.string());
  else tell(what + ": nothing was saved, for there is no directory");
}

// --- checkpoints

double Trainer::seconds() const {
  if (!started_at_) return seconds_before_;
  return seconds_before_ + std::chrono::duration<double>(Clock::now() - *started_at_).count();
}

std::map<std::string, double> Trainer::loader_numbers(const data::DataLoader& loader) {
  const data::DataLoaderOptions& o = loader.options();
  return {{"state.loader.samples", double(loader.dataset().size())},
          {"state.loader.batch_size", double(o.batch_size)},
          {"state.loader.shuffle", double(o.shuffle)},
          {"state.loader.drop_last", double(o.drop_last)},
          {"state.loader.seed", double(o.seed)}};
}

/// "state.callback.0.EarlyStopping."
std::string Trainer::state_name(std::size_t callback) const {
  const Callback& one = *options_.callbacks[callback];
  return "state.callback." + std::to_string(callback) + '.' + class_name(typeid(one)) + '.';
}

void Trainer::save(const fs::path& path) const {
  CheckpointState state = position_;
  for (const auto& [name, logged] : metrics_) {
    // Only what was measured at this step may rank this checkpoint among the best.
    if (logged.step == position_.step) state.numbers[name] = logged.value;
    state.numbers["state.metric.value." + name] = logged.value;
    state.numbers["state.metric.step." + name] = double(logged.step);
  }
  if (loader_) state.numbers.merge(loader_numbers(*loader_));
  state.numbers["state.seconds"] = seconds();
  state.numbers["state.validation_interrupted"] = double(validation_interrupted_);
  const auto add = [&](const std::string& name, const MetricSums& sums) {
    state.numbers["state.total." + name] = sums.total;
    state.numbers["state.weight." + name] = sums.weight;
    if (sums.mean != 0) state.numbers["state.mean." + name] = sums.mean;
    if (sums.spread != 0) state.numbers["state.spread." + name] = sums.spread;
  };
  add("loss", epoch_loss_.sums());
  for (const TaskMetric& metric : task_.metrics) add(metric.name(), metric.sums());
  for (std::size_t i = 0; i < options_.callbacks.size(); ++i)
    for (const auto& [name, value] : options_.callbacks[i]->state())
      state.numbers[state_name(i) + name] = value;
  state.texts["environment"] = environment_of(device());
  optim::NamedTensors tensors;
  for (std::size_t i = 0; i < options_.callbacks.size(); ++i)
    for (const auto& [name, x] : options_.callbacks[i]->tensors())
      tensors[state_name(i) + name] = x;
  save_training(path, training_, state, scheduler_ ? &*scheduler_ : nullptr, tensors);
}

namespace {
/// The entries whose names begin so, without that beginning.
template <class T>
std::map<std::string, T> part_of(const std::map<std::string, T>& numbers,
                                 const std::string& beginning) {
  std::map<std::string, T> part;
  for (auto at = numbers.lower_bound(beginning);
       at != numbers.end() && at->first.starts_with(beginning); ++at)
    part[at->first.substr(beginning.size())] = at->second;
  return part;
}
}  // namespace

void Trainer::restore_tensors(const optim::NamedTensors& tensors) {
  for (std::size_t i = 0; i < options_.callbacks.size(); ++i)
    if (const auto own = part_of(tensors, state_name(i)); !own.empty())
      options_.callbacks[i]->load_tensors(own);
}

void Trainer::restore(const CheckpointState& state) {
  position_ = {.step = state.step, .epoch = state.epoch, .batches = state.batches};
  const auto& numbers = state.numbers;
  const auto sums = [&](const std::string& name) {
    return MetricSums{
        number_in(numbers, "state.total." + name), number_in(numbers, "state.weight." + name),
        number_in(numbers, "state.mean." + name), number_in(numbers, "state.spread." + name)};
  };
  seconds_before_ = number_in(numbers, "state.seconds");
  validation_interrupted_ = number_in(numbers, "state.validation_interrupted") != 0;
  epoch_loss_.restore(sums("loss"));
  for (TaskMetric& metric : task_.metrics) metric.restore(sums(metric.name()));
  for (const auto& [name, value] : part_of(numbers, "state.metric.value."))
    metrics_[name] = {value, count_in(numbers, "state.metric.step." + name)};
  for (std::size_t i = 0; i < options_.callbacks.size(); ++i)
    if (const auto own = part_of(numbers, state_name(i)); !own.empty())
      options_.callbacks[i]->load_state(own);
}

void Trainer::save_in_directory() {
  // A monitor that nobody logs would keep nothing, silently.
  const bool known = metrics_.contains("val/loss") || !options_.monitor.starts_with("val/");
  if (options_.checkpoints.keep_best > 0 && position_.epoch > 0 && known)
    static_cast<void>(metric(options_.monitor));
  // A damaged one may still have the name; somebody may want to look at it.
  const fs::path path = free_name(checkpoints(), position_.step);
  save(path);
  saved_ = place(), saved_path_ = path;
  remove_old_checkpoints();
}

void Trainer::remove_old_checkpoints() {
  const CheckpointOptions& o = options_.checkpoints;
  keeper_->keep({.last = o.keep_last,
                 .best = o.keep_best,
                 .metric = options_.monitor,
                 .larger_is_better = options_.larger_is_better});
}

}  // namespace halftone::train
