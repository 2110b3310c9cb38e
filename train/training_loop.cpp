// The loop: epochs of steps, each with one or several batches, and the actions after each step.
#include <halftone/train/training_loop.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <iostream>
#include <limits>
#include <set>

#include <signal.h>

#include <halftone/autograd/ops.h>
#include <halftone/core/error.h>
#include <halftone/core/named_tensors.h>
#include <halftone/amp/probe.h>
#include <halftone/train/checkpoint.h>
#include <halftone/train/loggers.h>
#include <halftone/train/metrics.h>
#include <halftone/train/progress.h>
#include <halftone/train/task.h>
#include <halftone/train/trainer.h>

namespace halftone::train {

namespace {
using Clock = std::chrono::steady_clock;

constexpr const char* max_time_is_over = "max_time is over";

bool divides(int64_t every, int64_t count) { return every > 0 && count % every == 0; }

Task checked(Task task) {
  const bool computes = task.forward || task.forward_batch,
             compares = task.loss || task.loss_of_batch;
  if (!computes || !compares)
    fail<UsageError>("Trainer", "the task has no ", computes ? "loss" : "forward",
                     ". Give it that function.");
  if ((task.forward && task.forward_batch) || (task.loss && task.loss_of_batch))
    fail<UsageError>("Trainer", "the task has two functions for its ",
                     task.forward && task.forward_batch ? "forward" : "loss",
                     ", one of them of whole batches. Give it one.");
  std::set<std::string> names{"loss"};
  for (const TaskMetric& metric : task.metrics)
    if (metric.name().empty() || !names.insert(metric.name()).second)
      fail<UsageError>("Trainer", "no second metric can be named \"", metric.name(),
                       "\". Choose another name.");
  return task;
}

}  // namespace

double TrainingLoop::seconds() const {
  if (!started_at_) return seconds_before_;
  return seconds_before_ + std::chrono::duration<double>(Clock::now() - *started_at_).count();
}

void TrainingLoop::require_trainer() const {
  if (lost_trainer_)
    fail<UsageError>("Trainer",
                     "it was destroyed by a callback or another function that it called. Destroy "
                     "it after fit() has returned, and call stop() to end earlier.");
}

TrainingLoop::TrainingLoop(Task task, optim::Optimizer& optimizer, TrainerOptions options)
    : trainer_(std::shared_ptr<TrainingLoop>(std::shared_ptr<TrainingLoop>(), this)),
      world_(world()),
      task_(checked(std::move(task))),
      options_(for_this_rank(effective(std::move(options)))),
      training_(world_.size() > 1 ? amp::Training(strategy_of(options_), task_.model, optimizer,
                                                  world_, options_.distributed)
                                  : amp::Training(strategy_of(options_), task_.model, optimizer)) {
  const TrainerOptions& o = options_;
  group_ = std::max<int64_t>(o.accumulate_batches, world_.size());
  const distributed::WireFormat wire = training_.strategy().wire;
  const bool rounds = o.distributed.wire.value_or(wire) != distributed::WireFormat{} ||
                      wire != distributed::WireFormat{};
  if (!training_.trains_together() && (group_ > 1 || rounds))
    training_.train_together(world_, o.distributed);
  records_.silent = world_.rank() != 0;
  if (!o.directory.empty() && world_.rank() == 0)
    directory_.emplace(o.directory,
                       DirectoryOptions{.retention = {.last = o.checkpoints.keep_last,
                                                      .best = o.checkpoints.keep_best,
                                                      .metric = o.monitor,
                                                      .larger_is_better = o.larger_is_better},
                                        .resume = o.resume,
                                        .set_aside = o.set_aside,
                                        .csv = o.csv,
                                        .json_lines = o.json_lines,
                                        .tensorboard = o.tensorboard},
                       [this](const std::string& text) { records_.tell(text); });
}

FitResult TrainingLoop::fit(data::DataLoader train, std::optional<data::DataLoader> validation) {
  if (world_.size() == 1) return fit_here(std::move(train), std::move(validation));
  try {
    return fit_here(std::move(train), std::move(validation));
  } catch (const std::exception& error) { end_all(error.what()); }
}

FitResult TrainingLoop::fit_here(data::DataLoader train,
                                 std::optional<data::DataLoader> validation) {
  struct Running {
    TrainingLoop& loop;
    ~Running() { loop.seconds_before_ = loop.seconds(), loop.started_at_.reset(); }
  };
  FitResult result;
  {
    const StopSignals signals;
    started_at_ = Clock::now(), reason_.reset();
    const Running running{*this};
    const std::optional<DirectoryLock> lock = set_up(std::move(train), std::move(validation));
    each_callback([&](Callback& callback) { callback.on_fit_start(trainer_); });
    finish_step();
    check_limits();
    while (!reason_) run_epoch();
    result = finish();
  }
  // Another training of this process may have to finish its step; the last one ends the process.
  if (result.signal != 0 && options_.exit_on_signal && !StopSignals::any()) {
    std::cout.flush(), std::fflush(nullptr);  // the process ends without flushing
    raise(result.signal);
  }
  return result;
}

void TrainingLoop::run_epoch() {
  // The epoch is already over if a resumed run has a lower limit.
  if (position_.batches >= batches_) return follow_up(false);
  if (records_.progress)
    records_.progress->begin_epoch(position_.epoch + 1, position_.batches / group_);
  loader_->resume(position_.epoch, position_.batches);
  data::DataLoader::Iterator next = loader_->begin();
  for (const int64_t epoch = position_.epoch; !reason_ && position_.epoch == epoch;)
    follow_up(run_group(next));
}

// --- a step

/// A batch that all on_batch_start() have seen.
struct TrainingLoop::Fetched {
  data::Batch batch;
  Tensor terms;      // of its loss's mean
  RandomKey random;  // of its forward pass
};

/// A batch after its forward pass.
struct TrainingLoop::Pass {
  Fetched of;
  Tensor outputs, loss;
  bool accepted;  // by all callbacks of this rank
};

/// The state that a step changes before it is known whether it counts: restored, unless it was
/// released. Random numbers are restored only after an exception.
class TrainingLoop::HeldStep {
 public:
  explicit HeldStep(TrainingLoop& loop)
      : loop_(loop),
        buffers_(loop.task_.model),
        epoch_loss_(loop.epoch_loss_),
        metrics_(loop.task_.metrics),
        random_(default_generator().state()) {}
  ~HeldStep() {
    if (released_) {
      buffers_.release();
      return;
    }
    loop_.epoch_loss_ = std::move(epoch_loss_), loop_.task_.metrics = std::move(metrics_);
    if (std::uncaught_exceptions() > exceptions_) default_generator().set_state(random_);
  }
  HeldStep(const HeldStep&) = delete;
  HeldStep& operator=(const HeldStep&) = delete;
  void release() { released_ = true; }

 private:
  TrainingLoop& loop_;
  HeldBuffers buffers_;
  RunningMean epoch_loss_;
  std::vector<TaskMetric> metrics_;
  RandomKey random_;
  int exceptions_ = std::uncaught_exceptions();
  bool released_ = false;
};

/// Runs one step, from its batches to its update. Returns false if a callback dropped it. Ranks
/// compute one batch each, then the next; in the last round some ranks have none. The step's loss
/// is the mean over the terms of all its batches, so all are fetched and counted before the first
/// is computed.
bool TrainingLoop::run_group(data::DataLoader::Iterator& next) {
  const int64_t first = position_.batches, size = loader_->options().batch_size;
  const int64_t behind = first + std::min(group_, batches_ - first);
  const auto samples = double(std::min(behind * size, loader_->dataset().size()) - first * size);
  std::optional<HeldStep> held;
  if (std::ranges::any_of(options_.callbacks, [](const auto& c) { return c->drops_steps(); }))
    held.emplace(*this);
  training_.zero_grad();
  step_loss_.reset();
  bool accepted = true;
  const auto key_of = [&](int64_t batch) { return position_.epoch * batches_ + batch; };
  std::deque<Fetched> fetched;
  for (int64_t batch = first + rank(); batch < behind; batch += ranks()) {
    if (!fetched.empty()) ++next;
    if (training_.trains_together()) training_.begin_batch(key_of(batch));
    fetched.push_back(fetch(*next));
  }
  const bool took_part = !fetched.empty();
  const Tensor terms = terms_of_step(fetched, behind - first, samples);
  for (int64_t round = first; round < behind; round += ranks()) {
    std::optional<Pass> pass;
    if (training_.trains_together()) training_.begin_batch(key_of(round + rank()));
    if (accepted && !fetched.empty()) {
      pass.emplace(forward(std::move(fetched.front()), terms));
      fetched.pop_front();
    }
    if (held) accepted = all_accept(accepted && (!pass || pass->accepted));
    if (accepted && pass) backward(std::move(*pass), terms);
    else if (accepted) training_.no_backward();
  }
  if (took_part && behind + rank() < batches_) ++next;  // fetches no batch after a limit
  if (training_.trains_together()) training_.begin_batch(key_of(behind));
  if (accepted) update();
  else training_.zero_grad();
  if (accepted && held) held->release();
  held.reset();
  position_.batches = behind;
  samples_ += samples;
  show_progress(samples);
  return accepted;
}

TrainingLoop::Fetched TrainingLoop::fetch(data::Batch batch) {
  const int64_t size = batch.inputs.size(0);
  each_callback([&](Callback& callback) { callback.on_batch_start(trainer_, batch); });
  if (batch.inputs.size(0) != size)
    fail<UsageError>("Trainer", "a callback made a batch of ", size, " samples one of ",
                     batch.inputs.size(0), ". Keep their number.");
  const Tensor terms = count_of(task_, batch);
  return {std::move(batch), terms, default_generator().state()};
}

/// Returns the terms of all batches of the step: an f64 scalar on the device of its batches;
/// undefined if this rank has none, or if the step has only one batch.
Tensor TrainingLoop::terms_of_step(const std::deque<Fetched>& own, int64_t batches,
                                   double samples) const {
  if (batches == 1) return {};
  const Device device = own.empty() ? Device::cpu() : own.front().terms.device();
  if (!task_.count) return own.empty() ? Tensor{} : scalar(samples, f64, device);
  const NoGrad no_grad;
  if (ranks() > 1) {
    std::vector<double> terms;
    for (const Fetched& one : own) terms.push_back(one.terms.item());
    const double sum = sum_of_all(terms, batches);
    return own.empty() ? Tensor{} : scalar(sum, f64, device);
  }
  Tensor sum = own.front().terms;
  for (std::size_t i = 1; i < own.size(); ++i) sum = sum + own[i].terms;
  return sum;
}

namespace {
/// Returns what callbacks see of a batch's loss: 0 if the batch has none of the step's terms,
/// because the mean of no terms is NaN.
Tensor seen_loss(const Tensor& loss, const Tensor& terms, const Tensor& of_step) {
  if (!of_step.defined()) return loss;
  const NoGrad no_grad;
  const Tensor without = equal(terms, zeros({}, f64, of_step.device()));
  const Tensor matters = logical_or(logical_not(without), equal(of_step, terms));
  return where(matters, loss.detach(), zeros({}, loss.dtype(), loss.device()));
}
}  // namespace

TrainingLoop::Pass TrainingLoop::forward(Fetched fetched, const Tensor& terms_of_step) {
  const data::Batch& batch = fetched.batch;
  default_generator().set_state(fetched.random);
  const Tensor outputs = outputs_of(task_, training_, batch);
  const Tensor loss = loss_of(task_, outputs, batch);
  require_trainer();
  const Tensor seen = task_.count ? seen_loss(loss, fetched.terms, terms_of_step) : loss;
  for (const auto& callback : options_.callbacks) {
    const bool accepted = callback->on_loss(trainer_, seen);
    require_trainer();
    if (!accepted) {
      if (!callback->drops_steps())
        fail<UsageError>("Trainer", "a callback dropped a step, but its drops_steps() is false. ",
                         "Let it say true, so that buffers are kept.");
      return {std::move(fetched), outputs, loss, false};
    }
  }
  return {std::move(fetched), outputs, loss, true};
}

namespace {
/// Returns the loss times the batch's share of the step's terms, so that a step's losses add up to
/// their mean. A step without any term has the shares 0.
Tensor shared(const Tensor& loss, const Tensor& terms, const Tensor& of_step) {
  if (!of_step.defined()) return loss;
  Tensor share;
  {
    const NoGrad no_grad;
    const Tensor none = zeros({}, f64, of_step.device());
    share = where(equal(of_step, none), none, terms / of_step);
  }
  return loss * cast(share, loss.dtype());
}
}  // namespace

/// Adds a batch's gradients to those of its step.
void TrainingLoop::backward(Pass pass, const Tensor& terms_of_step) {
  const auto& [fetched, outputs, loss, accepted] = pass;
  const auto& [batch, terms, random] = fetched;
  training_.backward(shared(loss, terms, terms_of_step));
  if (options_.explain_overflows)
    last_loss_ = [this, batch = batch, terms = terms, terms_of_step] {
      return shared(loss_of(task_, outputs_of(task_, training_, batch), batch), terms,
                    terms_of_step);
    };

  step_loss_.update(loss, terms);
  const Outcome outcome{loss.detach(), outputs.detach(), batch.targets, terms, batch.more};
  epoch_loss_.update(loss, terms);
  if (options_.train_metrics)
    for (TaskMetric& metric : task_.metrics) metric.update(outcome);
}

void TrainingLoop::update() {
  if (options_.clip_norm > 0)
    gradient_norm_ = training_.clip_grad_norm(options_.clip_norm, options_.clip_norm_type);
  if (options_.clip_value > 0) training_.clip_grad_value(options_.clip_value);
  const amp::Stepped stepped = training_.step();
  if (options_.explain_overflows && !stepped) explain_overflow();
  ++position_.step;
  if (scheduler_ && stepped) scheduler_->step();  // without a schedule nothing waits for the result
}

void TrainingLoop::explain_overflow() {
  if (!last_loss_) return;  // this rank had no batch
  const auto found = policy::explain_overflow(training_, std::exchange(last_loss_, {}));
  PlainText text;
  text << "step " << position_.step + 1 << " skipped: ";
  if (found) text << *found;
  else text << "no tensor of its last batch is infinite or NaN; an earlier one's must be";
  records_.tell(text.str());
}

void TrainingLoop::show_progress(double samples) {
  if (!records_.progress) return;
  records_.progress->step(int64_t(samples), [this](const auto& show) {
    show("loss", epoch_loss_.value());
    if (options_.train_metrics)
      for (const TaskMetric& metric : task_.metrics)
        show(metric.name(), metric.value(), metric.shown());
    if (training_.scaler().enabled()) {
      show("scale", training_.scaler().scale_value(), Shown::count);
      show("skipped", double(training_.skipped_steps()), Shown::count);
    }
    if (const auto validated = records_.last("val/loss")) show("val loss", *validated);
  });
}

// --- after a step, taken or dropped

void TrainingLoop::follow_up(bool stepped) {
  left_ = {.stage = Stage::log, .stepped = stepped, .epoch_over = position_.batches >= batches_};
  finish_step();
}

bool TrainingLoop::saves_by_plan() const {
  const CheckpointOptions& o = options_.checkpoints;
  return (left_.epoch_over && divides(o.every_epochs, position_.epoch)) ||
         (left_.stepped && divides(o.every_steps, position_.step));
}

/// Calls a hook of every callback. After an exception the next call goes on with the callback that
/// threw.
void TrainingLoop::call_each(void (Callback::*hook)(Trainer&)) {
  for (; left_.callback < options_.callbacks.size(); ++left_.callback) {
    ((*options_.callbacks[left_.callback]).*hook)(trainer_);
    require_trainer();
  }
  left_.callback = 0;
}

/// Does the work that is left after a step. A signal leaves the rest, from the validation on, to
/// the training that resumes; an exception leaves the rest to the next fit().
void TrainingLoop::finish_step() {
  switch (left_.stage) {
    case Stage::log:
      if (left_.stepped && divides(options_.log_every_steps, position_.step)) log_step();
      left_.stage = Stage::validation;
      if (left_.epoch_over) end_epoch();
      [[fallthrough]];
    case Stage::validation:
      if ((left_.epoch_over && divides(options_.validate_every_epochs, position_.epoch)) ||
          (left_.stepped && divides(options_.validate_every_steps, position_.step)) ||
          left_.interrupted) {
        left_.interrupted = !run_validation();
        if (left_.interrupted) return check_limits();
      }
      left_.stage = Stage::validation_end;
      [[fallthrough]];
    case Stage::validation_end:
      if (left_.validated) call_each(&Callback::on_validation_end);
      left_.stage = Stage::step_end;
      [[fallthrough]];
    case Stage::step_end:
      if (left_.stepped) call_each(&Callback::on_step_end);
      left_.stage = Stage::epoch_end;
      [[fallthrough]];
    case Stage::epoch_end:
      if (left_.epoch_over) call_each(&Callback::on_epoch_end);
      left_.stage = Stage::save;
      [[fallthrough]];
    case Stage::save:
      check_limits();
      if (reason_) return;  // finish() saves
      record_and_save(saves_by_plan(), false);
      left_ = {};
      [[fallthrough]];
    case Stage::none: break;
  }
}

void TrainingLoop::log_step() {
  log("train/loss", value_of_all(step_loss_));
  if (training_.scaler().enabled()) {
    log("train/loss_scale", training_.scaler().scale_value());
    log("train/skipped_steps", double(training_.skipped_steps()));
  }
  if (options_.clip_norm > 0) log("train/gradient_norm", gradient_norm_.item());
  log_waiting();
  each_callback([&](Callback& callback) { callback.on_log(trainer_); });
}

void TrainingLoop::end_epoch() {
  log("train/loss_epoch", value_of_all(epoch_loss_));
  epoch_loss_.reset();
  for (TaskMetric& metric : task_.metrics) {
    if (options_.train_metrics) log("train/" + metric.name() + "_epoch", value_of_all(metric));
    metric.reset();
  }
  ++position_.epoch, position_.batches = 0;
  log("epoch", double(position_.epoch));
}

/// A log that cannot be written does not prevent a checkpoint. Records before a checkpoint are
/// written before it, so that a kill leaves no gap. `interruption`: the checkpoint is not part of
/// the plan, and the next one replaces it.
void TrainingLoop::record_and_save(bool saves, bool interruption) {
  CheckpointState at = position_;
  if (left_.interrupted) at.numbers[unfinished_step] = 1;
  if (interruption) at.numbers[unplanned_checkpoint] = 1;
  saves = saves && rank_0_says(directory_ && !directory_->holds(at));
  std::exception_ptr failure;
  try {
    if (!left_.interrupted) records_.write(position_.step);  // else the row is not complete
    if (saves) records_.flush();
  } catch (...) { failure = std::current_exception(); }
  if (saves) {
    // If the monitor is never logged, no best checkpoint would be kept; this throws instead.
    const bool known = records_.last("val/loss") || !options_.monitor.starts_with("val/");
    if (options_.checkpoints.keep_best > 0 && position_.epoch > 0 && known)
      static_cast<void>(metric(options_.monitor));
    const auto write = [&](const std::filesystem::path& path) { save(path, at); };
    if (directory_) directory_->save(at, write);
    else write({});  // this rank's share of what rank 0 saves
  }
  if (failure) std::rethrow_exception(failure);
}

bool TrainingLoop::may_stop() const {
  return position_.step >= options_.min_steps && position_.epoch >= options_.min_epochs;
}

void TrainingLoop::stop(std::string reason) {
  if (wish_.empty() || may_stop()) wish_ = std::move(reason);
  if (may_stop()) reason_ = wish_;
}

void TrainingLoop::check_limits() {
  if (!wish_.empty() && !reason_ && may_stop()) reason_ = wish_;
  if (reason_) return agree_on_reason();
  const int64_t steps = options_.max_steps, epochs = options_.max_epochs;
  const double most_seconds = options_.max_time.count();
  if (steps > 0 && position_.step >= steps) reason_ = "max_steps is reached";
  else if (epochs > 0 && position_.epoch >= epochs) reason_ = "max_epochs is reached";
  else if (const int signal = StopSignals::received(); signal != 0)
    reason_ = StopSignals::meaning(signal);
  else if (most_seconds > 0 && seconds() >= most_seconds) reason_ = max_time_is_over;
  agree_on_reason();
}

FitResult TrainingLoop::finish() {
  std::exception_ptr failure;
  try {
    each_callback([&](Callback& callback) { callback.on_fit_end(trainer_); });
  } catch (...) { failure = std::current_exception(); }
  const int before = signal_of_all();
  const bool interruption = left_.interrupted || *reason_ == max_time_is_over ||
                            (before != 0 && *reason_ == StopSignals::meaning(before));
  const bool by_plan = left_.stage == Stage::save && saves_by_plan();
  // A request to stop has its effect when the training ends in peace; until then it is saved.
  std::string wish = failure || before != 0 ? "" : std::exchange(wish_, {});
  try {
    record_and_save(true, interruption && !by_plan);
  } catch (...) {
    if (!wish.empty()) wish_ = std::move(wish);
    throw;
  }
  if (!left_.interrupted) left_ = {};
  if (failure) std::rethrow_exception(failure);
  records_.flush();
  const int signal = signal_of_all();  // a rank that has the result knows that rank 0 has saved
  if (signal != 0)
    records_.tell(StopSignals::meaning(signal) +
                  (directory_ ? ": saved " + directory_->last_saved().string()
                              : ": nothing was saved, because there is no directory"));
  if (records_.progress) records_.progress->finish();
  return {.reason = *reason_,
          .signal = signal,
          .steps = position_.step,
          .epochs = position_.epoch,
          .seconds = seconds(),
          .metrics = records_.last(),
          .best_checkpoint = directory_ ? directory_->best() : std::filesystem::path()};
}

// The work of a Trainer before its first step: it combines options, data and the content of its
// directory. Also saves the state, so that another Trainer can continue.

namespace {

int64_t limited(int64_t size, int64_t limit) { return limit > 0 ? std::min(size, limit) : size; }

void require_batches(const data::DataLoader& loader, std::string_view which) {
  if (loader.size() == 0)
    fail<UsageError>("Trainer", "the ", which, " loader has no batch: ", loader.dataset().size(),
                     " samples, batch_size ", loader.options().batch_size,
                     ". Turn drop_last off, or make batches smaller.");
}

void require_device(const data::DataLoader& loader, Device device, std::string_view which) {
  if (loader.options().device != device)
    fail<DeviceError>("Trainer", "the model is on ", device, ", the ", which,
                      " loader delivers to ", loader.options().device,
                      ". Give it {.device = ...}, or move the model.");
}

/// Returns a name such as "state.callback.0.EarlyStopping.".
std::string state_name(const Callback& callback, std::size_t i) {
  return "state.callback." + std::to_string(i) + '.' + class_name(typeid(callback)) + '.';
}
}  // namespace

Device TrainingLoop::device() const {
  const std::vector<Tensor> parameters = task_.model.parameters();
  return parameters.empty() ? Device::cpu() : parameters.front().device();
}

void TrainingLoop::require_data(const data::DataLoader& train,
                                const data::DataLoader* validation) const {
  const TrainerOptions& o = options_;
  require_batches(train, "training");
  require_device(train, device(), "training");
  if (train.options().share != data::LoaderShare{})
    fail<UsageError>("Trainer",
                     "the loader delivers a share of the batches. Leave it whole: the "
                     "Trainer shares them out.");
  if (position_.batches > 0 && loader_) require_same_loader(loader_numbers(*loader_), train);
  if (validation) {
    require_batches(*validation, "validation");
    require_device(*validation, device(), "validation");
  }
  const bool validates = validation && (o.validate_every_epochs > 0 || o.validate_every_steps > 0);
  const bool wants = o.checkpoints.keep_best > 0 && o.monitor.starts_with("val/");
  if ((o.validate_every_steps > 0 && !validation) || (wants && !validates))
    fail<UsageError>("Trainer",
                     wants ? "checkpoints.keep_best by " + o.monitor : "validate_every_steps",
                     " needs something to validate on, and a time for it. Pass fit() a second "
                     "loader, and validate_every_epochs or validate_every_steps.");
}

std::optional<DirectoryLock> TrainingLoop::set_up(data::DataLoader train,
                                                  std::optional<data::DataLoader> validation) {
  const TrainerOptions& o = options_;
  if (o.overfit_batches > 0) {
    data::DataLoaderOptions in_order = train.options();
    in_order.shuffle = false;
    train = train.with_options(in_order), validation = train;
  }
  if (position_.batches > 0 && loader_) train = with_seed_of(loader_numbers(*loader_), train);
  require_data(train, validation ? &*validation : nullptr);
  loader_ = std::move(train), validation_ = std::move(validation);
  batches_ = limited(loader_->size(), o.limit_train_batches);
  validation_batches_ = validation_ ? limited(validation_->size(), o.limit_validation_batches) : 0;

  require_alike();
  make_progress();
  std::optional<DirectoryLock> lock;
  if (directory_) lock = directory_->lock();
  if (!begun_) begin();
  share_out();
  return lock;
}

void TrainingLoop::make_progress() {
  const TrainerOptions& o = options_;
  constexpr int64_t never = std::numeric_limits<int64_t>::max();
  if (o.progress_bar)
    records_.progress.emplace(
        ProgressOptions{.epochs = o.max_epochs,
                        .steps_per_epoch = steps_per_epoch(),
                        .interval = o.log_every_steps > 0 ? o.log_every_steps : never,
                        .output = o.output});
}

void TrainingLoop::begin() {
  optim::Optimizer& optimizer = training_.optimizer();
  const std::vector<double> rates = rates_of(optimizer);
  try {
    if (options_.schedule) make_scheduler(steps_per_epoch());
    if (options_.model_summary)
      print_for_people(options_.output,
                       model_summary(task_.model, optimizer, training_.strategy(),
                                     options_.distributed.shard_optimizer ? ranks() : 1) +
                           '\n');
    records_.loggers = options_.loggers;
    if (!options_.directory.empty()) {
      const auto found =
          found_by_rank_0(directory_ ? directory_->open() : std::optional<FoundCheckpoint>());
      if (found && adopt_group(found->state)) {
        if (scheduler_) set_rates(optimizer, rates), make_scheduler(steps_per_epoch());
        make_progress();
      }
      begin_in_directory(found);
    }
    if (validation_)
      evaluate(*validation_, std::min(validation_batches_, options_.sanity_check_batches), false);
    begun_ = true;
  } catch (...) {
    records_.loggers.clear();
    if (scheduler_) set_rates(optimizer, rates);
    scheduler_.reset();
    throw;
  }
}

void TrainingLoop::begin_in_directory(const std::optional<FoundCheckpoint>& found) {
  if (found) loader_ = with_seed_of(found->state.numbers, *loader_);
  if (found && found->state.batches > 0) require_same_loader(found->state.numbers, *loader_);
  if (found && options_.deterministic) require_same_environment(found->state, device());
  if (directory_)
    for (auto& logger : directory_->loggers()) records_.loggers.push_back(std::move(logger));
  if (found) resume(*found);
  if (directory_) directory_->remove_old();  // a kill may have come between saving and removing
}

void TrainingLoop::make_scheduler(int64_t steps_per_epoch) {
  int64_t steps = options_.max_steps, of_epochs = 0;
  if (__builtin_mul_overflow(options_.max_epochs, steps_per_epoch, &of_epochs))
    of_epochs = std::numeric_limits<int64_t>::max();
  if (of_epochs > 0) steps = steps > 0 ? std::min(steps, of_epochs) : of_epochs;
  scheduler_.emplace(training_.optimizer(), options_.schedule(steps));
}

// --- checkpoints

namespace {
/// Calls `f` with each sum of a metric and its name in checkpoints.
template <class Sums, class F> void each_sum(Sums& sums, const F& f) {
  f("total", sums.total), f("weight", sums.weight);
  f("targets", sums.targets), f("squares", sums.squares);
}
}  // namespace

void TrainingLoop::save(const std::filesystem::path& path) const { save(path, position_); }

/// `state`: the position, and what kind of checkpoint it is.
void TrainingLoop::save(const std::filesystem::path& path, CheckpointState state) const {
  records_.save(state, left_.interrupted);
  if (loader_) state.numbers.merge(loader_numbers(*loader_));
  state.numbers["state.seconds"] = seconds();
  if (left_.interrupted) {
    state.numbers["state.validation_interrupted"] = 1;
    state.numbers["state.left.stepped"] = double(left_.stepped);
    state.numbers["state.left.epoch_over"] = double(left_.epoch_over);
  }
  if (!wish_.empty()) state.texts["wish"] = wish_;
  const auto add = [&](const std::string& name, const MetricSums& sums) {
    each_sum(sums, [&](const std::string& part, const ExactSum& sum) {
      state.numbers["state." + part + '.' + name] = sum;
      if (sum.rest() != 0) state.numbers["state." + part + "_rest." + name] = sum.rest();
    });
  };
  add("loss", of_all(epoch_loss_.sums()));
  for (const TaskMetric& metric : task_.metrics) add(metric.name(), of_all(metric.sums()));
  if (group_ > 1) state.numbers["state.loader.group"] = double(group_);
  optim::NamedTensors tensors;
  for (std::size_t i = 0; i < options_.callbacks.size(); ++i) {
    const Callback& callback = *options_.callbacks[i];
    const std::string own = state_name(callback, i);
    for (const auto& [name, value] : callback.state()) state.numbers[own + name] = value;
    for (const auto& [name, x] : callback.tensors()) tensors[own + name] = x;
  }
  state.texts["environment"] = environment_of(device());
  save_training(path, training_, state, scheduler_ ? &*scheduler_ : nullptr, tensors);
}

void TrainingLoop::resume(const FoundCheckpoint& found) {
  optim::LrScheduler* const scheduler = scheduler_ ? &*scheduler_ : nullptr;
  const OptionValues program = option_values(training_.optimizer(), scheduler);
  optim::NamedTensors tensors;
  const CheckpointState state = load_training(read_by_rank_0(found), found.path.string(), training_,
                                              scheduler, amp::Convert::refuse, &tensors);
  const auto& numbers = state.numbers;
  for (std::size_t i = 0; i < options_.callbacks.size(); ++i) {
    Callback& callback = *options_.callbacks[i];
    const std::string name = state_name(callback, i);
    if (const auto own = part_of(tensors, name); !own.empty()) callback.load_tensors(own);
    if (const auto own = part_of(numbers, name); !own.empty()) callback.load_state(own);
  }
  position_ = {.step = state.step, .epoch = state.epoch, .batches = state.batches};
  records_.restore(state);
  seconds_before_ = number_in(numbers, "state.seconds");
  left_ = {};
  if (number_in(numbers, "state.validation_interrupted") != 0)
    left_ = {.stage = Stage::validation,
             .stepped = number_in(numbers, "state.left.stepped") != 0,
             .epoch_over = number_in(numbers, "state.left.epoch_over") != 0,
             .interrupted = true};
  if (const auto wish = state.texts.find("wish"); wish != state.texts.end()) wish_ = wish->second;
  const auto sums = [&](const std::string& name) {
    MetricSums sums;
    if (rank() != 0) return sums;  // rank 0 continues with the sums of all ranks
    each_sum(sums, [&](const std::string& part, ExactSum& sum) {
      sum = {number_in(numbers, "state." + part + '.' + name),
             number_in(numbers, "state." + part + "_rest." + name)};
    });
    return sums;
  };
  epoch_loss_.restore(sums("loss"));
  for (TaskMetric& metric : task_.metrics) metric.restore(sums(metric.name()));

  note("resumed after step " + std::to_string(state.step) + " from " + found.path.string());
  for (const std::string& line :
       changes(program, option_values(training_.optimizer(), scheduler), state, *loader_))
    records_.tell(line);
}

// Validation and prediction: passes in evaluation mode, which change neither model nor generator.

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
