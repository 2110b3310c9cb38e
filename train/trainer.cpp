#include <halftone/train/trainer.h>

#include <array>
#include <atomic>
#include <cmath>
#include <mutex>

#include <signal.h>

#include <halftone/core/device.h>
#include <halftone/core/error.h>
#include <halftone/train/task.h>
#include <halftone/train/training_loop.h>

namespace halftone::train {

Trainer::Trainer(Task task, optim::Optimizer& optimizer, TrainerOptions options)
    : loop_(std::make_shared<TrainingLoop>(std::move(task), optimizer, std::move(options))),
      owns_(true) {
  if (loop_->options().portable_bits) set_portable_bits(true);  // the options are valid here
}
Trainer::Trainer(std::shared_ptr<TrainingLoop> loop) : loop_(std::move(loop)), owns_(false) {}
Trainer::~Trainer() {
  if (owns_) loop_->lose_trainer();
}

FitResult Trainer::fit(data::DataLoader train, std::optional<data::DataLoader> validation) {
  const auto loop = loop_;
  return loop->fit(std::move(train), std::move(validation));
}
MetricValues Trainer::validate(data::DataLoader loader) {
  const auto loop = loop_;
  return loop->validate(std::move(loader));
}
Tensor Trainer::predict(data::DataLoader loader) {
  const auto loop = loop_;
  return loop->predict(std::move(loader));
}
void Trainer::save(const std::filesystem::path& path) const { loop_->save(path); }

void Trainer::stop(std::string reason) { loop_->stop(std::move(reason)); }
void Trainer::log(std::string_view name, double value) { loop_->log(name, value); }
double Trainer::metric(std::string_view name) const { return loop_->metric(name); }
void Trainer::note(std::string_view text) { loop_->note(text); }

amp::Training& Trainer::training() { return loop_->training(); }
nn::Module& Trainer::model() { return loop_->model(); }
const TrainerOptions& Trainer::options() const { return loop_->options(); }
bool Trainer::validates() const { return loop_->validates(); }
const CheckpointState& Trainer::position() const { return loop_->position(); }
double Trainer::samples() const { return loop_->samples(); }
double Trainer::step_loss() const { return loop_->step_loss(); }
int Trainer::rank() const { return loop_->rank(); }
int Trainer::ranks() const { return loop_->ranks(); }

// Finds options that contradict each other or are out of range, before it changes the model.

namespace {

void require_at_least(int64_t least, int64_t value, std::string_view option) {
  if (value < least)
    fail<UsageError>("Trainer", option, " is ", value, ". Use ", least, " or more.");
}

void require_not_negative(double value, std::string_view option) {
  if (!(value >= 0) || std::isinf(value))
    fail<UsageError>("Trainer", option, " is ", value, ". Use 0 for none, or a positive number.");
}

void exclude(bool both, std::string_view first, std::string_view second) {
  if (both)
    fail<UsageError>("Trainer", first, " and ", second, " contradict each other. Pass one.");
}

void check_numbers(const TrainerOptions& o) {
  require_at_least(0, o.max_epochs, "max_epochs");
  require_at_least(0, o.max_steps, "max_steps");
  require_at_least(0, o.min_epochs, "min_epochs");
  require_at_least(0, o.min_steps, "min_steps");
  require_not_negative(o.max_time.count(), "max_time");
  require_at_least(0, o.accumulate_batches, "accumulate_batches");
  require_not_negative(o.clip_norm, "clip_norm");
  require_not_negative(o.clip_value, "clip_value");
  require_at_least(0, o.validate_every_epochs, "validate_every_epochs");
  require_at_least(0, o.validate_every_steps, "validate_every_steps");
  require_at_least(0, o.sanity_check_batches, "sanity_check_batches");
  require_at_least(0, o.limit_train_batches, "limit_train_batches");
  require_at_least(0, o.limit_validation_batches, "limit_validation_batches");
  require_at_least(0, o.fast_dev_run, "fast_dev_run");
  require_at_least(0, o.overfit_batches, "overfit_batches");
  require_at_least(0, o.log_every_steps, "log_every_steps");
  require_at_least(0, o.checkpoints.every_epochs, "checkpoints.every_epochs");
  require_at_least(0, o.checkpoints.every_steps, "checkpoints.every_steps");
  require_at_least(1, o.checkpoints.keep_last, "checkpoints.keep_last");
  require_at_least(0, o.checkpoints.keep_best, "checkpoints.keep_best");
}

void check(const TrainerOptions& o) {
  check_numbers(o);
  exclude(o.strategy && o.precision != TrainerOptions{}.precision, "strategy", "precision");
  exclude(o.clip_norm > 0 && o.clip_value > 0, "clip_norm", "clip_value");
  if (!(o.clip_norm_type > 0))
    fail<UsageError>("Trainer", "clip_norm_type is ", o.clip_norm_type,
                     ". Use a positive number, or infinity.");
  exclude(o.max_steps > 0 && o.min_steps > o.max_steps, "min_steps above max_steps", "max_steps");
  exclude(o.max_epochs > 0 && o.min_epochs > o.max_epochs, "min_epochs above max_epochs",
          "max_epochs");
  exclude(o.fast_dev_run > 0 && o.overfit_batches > 0, "fast_dev_run", "overfit_batches");
  exclude(o.fast_dev_run > 0 && o.limit_train_batches > 0, "fast_dev_run", "limit_train_batches");
  exclude(o.overfit_batches > 0 && o.limit_train_batches > 0, "overfit_batches",
          "limit_train_batches");
  exclude(o.fast_dev_run > 0 && o.limit_validation_batches > 0, "fast_dev_run",
          "limit_validation_batches");
  exclude(o.overfit_batches > 0 && o.limit_validation_batches > 0, "overfit_batches",
          "limit_validation_batches");
  const amp::Policy strategy = strategy_of(o);
  if (o.fast_dev_run == 0 && o.max_epochs == 0 && o.max_steps == 0 && o.max_time.count() == 0)
    fail<UsageError>("Trainer",
                     "nothing ends this training. Pass max_epochs, max_steps or max_time.");
  if (o.schedule && o.fast_dev_run == 0 && o.max_epochs == 0 && o.max_steps == 0)
    fail<UsageError>("Trainer",
                     "a schedule needs to know the number of steps, and max_time alone "
                     "does not say it. Pass max_epochs or max_steps as well.");
  const distributed::WireFormat wire = o.distributed.wire.value_or(strategy.wire);
  if (wire.error_feedback && o.deterministic && !o.directory.empty())
    fail<UsageError>("Trainer", "the wire is ", name(wire),
                     ", and what its error feedback keeps is in no checkpoint, so that a resumed "
                     "training would get other bits. Leave out deterministic, or the feedback.");
  if (o.clip_value > 0 && strategy.scales_loss && strategy.weights == f16)
    fail<UsageError>("Trainer", "clip_value needs unscaled gradients, and under ", strategy.name,
                     " these would be f16, which underflows. Use clip_norm.");
  const std::pair<bool, std::string_view> need_files[] = {
      {o.resume, "resume"},
      {o.set_aside, "set_aside"},
      {o.json_lines, "json_lines"},
      {o.tensorboard, "tensorboard"},
      {o.checkpoints != CheckpointOptions{}, "checkpoints"}};
  for (const auto& [asked, option] : need_files)
    if (asked && o.directory.empty())
      fail<UsageError>("Trainer", option, " needs a place for files. Pass directory.");
  if (o.checkpoints.keep_best > 0 && o.monitor.empty())
    fail<UsageError>("Trainer", "checkpoints.keep_best is ", o.checkpoints.keep_best,
                     ", but monitor is empty. Name a metric, such as \"val/loss\".");
  if (o.output == nullptr && (o.progress_bar || o.model_summary))
    fail<UsageError>("Trainer",
                     "output is null. Leave it stdout, or turn progress_bar and "
                     "model_summary off.");
  for (const auto& callback : o.callbacks)
    if (!callback) fail<UsageError>("Trainer", "a callback is null. Leave it out.");
  for (const auto& logger : o.loggers)
    if (!logger) fail<UsageError>("Trainer", "a logger is null. Leave it out.");
}
}  // namespace

TrainerOptions effective(TrainerOptions options) {
  check(options);
  if (const int64_t few = options.fast_dev_run + options.overfit_batches; few > 0)
    options.limit_train_batches = options.limit_validation_batches = few;
  if (options.fast_dev_run > 0) {
    options.max_epochs = 1, options.max_steps = 0, options.max_time = {};
    options.min_epochs = options.min_steps = 0;
    options.validate_every_epochs = 1, options.validate_every_steps = 0;
    options.directory.clear(), options.loggers.clear();
  }
  return options;
}

amp::Policy strategy_of(const TrainerOptions& options) {
  return options.strategy ? *options.strategy : strategy_for(options.precision);
}

// The description of the program that a checkpoint records.

std::string environment_of(Device device) {
  PlainText text;
  text << "halftone " HALFTONE_VERSION ", " << kernels_of(device);
  if (device.kind != DeviceKind::cpu || !portable_bits())
    text << ", " << cpu_threads() << " threads";
  return text.str();
}

// The handler does only what is allowed in a handler: it stores a number.

namespace {
std::atomic<int> noted = 0;
static_assert(std::atomic<int>::is_always_lock_free);  // allowed in a handler

void note(int signal) { noted.store(signal, std::memory_order_relaxed); }

using Action = struct sigaction;
constexpr std::array kinds{SIGINT, SIGTERM, SIGHUP};
std::mutex mutex;  // guards the variables below
int living = 0;
std::array<Action, kinds.size()> before;
Action pipe_before;

/// Does nothing if the process was started with the signal ignored, as nohup and scripts do.
void install(int signal, Action& as_it_was) {
  Action action{};
  action.sa_handler = note;
  action.sa_flags = int(SA_RESETHAND | SA_RESTART);  // a second signal gets the default action
  sigemptyset(&action.sa_mask);
  sigaction(signal, nullptr, &as_it_was);
  if (as_it_was.sa_handler != SIG_IGN) sigaction(signal, &action, nullptr);
}

void ignore_pipe() {
  Action ignore{};
  ignore.sa_handler = SIG_IGN;
  sigemptyset(&ignore.sa_mask);
  sigaction(SIGPIPE, nullptr, &pipe_before);
  if (pipe_before.sa_handler == SIG_DFL) sigaction(SIGPIPE, &ignore, nullptr);
}
}  // namespace

StopSignals::StopSignals() {
  const std::lock_guard lock(mutex);
  if (living++ > 0) return;
  noted = 0;
  for (std::size_t i = 0; i < kinds.size(); ++i) install(kinds[i], before[i]);
  ignore_pipe();
}

StopSignals::~StopSignals() {
  const std::lock_guard lock(mutex);
  if (--living > 0) return;
  for (std::size_t i = 0; i < kinds.size(); ++i) sigaction(kinds[i], &before[i], nullptr);
  sigaction(SIGPIPE, &pipe_before, nullptr);
}

int StopSignals::received() { return noted.load(std::memory_order_relaxed); }

bool StopSignals::any() {
  const std::lock_guard lock(mutex);
  return living > 0;
}

const char* StopSignals::meaning(int signal) {
  if (signal == SIGINT) return "interrupted (SIGINT)";
  return signal == SIGHUP ? "the terminal is gone (SIGHUP)" : "terminated (SIGTERM)";
}

}  // namespace halftone::train
