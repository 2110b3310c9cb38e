// Counts validations without improvement; checkpoints contain the count.
#include <halftone/train/callbacks.h>

#include <cmath>
#include <limits>

#include <halftone/autograd/ops.h>
#include <halftone/autograd/slots.h>
#include <halftone/core/backend.h>
#include <halftone/core/error.h>
#include <halftone/core/files.h>
#include <halftone/core/memory.h>
#include <halftone/data/transforms.h>
#include <halftone/amp/probe.h>
#include <halftone/train/metrics.h>
#include <halftone/train/trainer.h>

namespace halftone::train {

EarlyStopping::EarlyStopping(EarlyStoppingOptions options)
    : options_(std::move(options)),
      best_((options_.larger_is_better ? -1 : 1) * std::numeric_limits<double>::infinity()) {
  if (options_.patience < 1)
    fail<UsageError>("EarlyStopping", "patience is ", options_.patience, ". Use 1 or more.");
  if (!(options_.min_delta >= 0) || std::isinf(options_.min_delta))
    fail<UsageError>("EarlyStopping", "min_delta is ", options_.min_delta, ". Use 0 or more.");
}

void EarlyStopping::on_fit_start(Trainer& trainer) {
  if (!trainer.validates())
    fail<UsageError>("EarlyStopping", "nothing validates, so ", options_.metric,
                     " will never be looked at. Pass fit() a second loader, or leave this out.");
  stop_if_hopeless(trainer);
}

void EarlyStopping::on_validation_end(Trainer& trainer) {
  const double value = trainer.metric(options_.metric), delta = options_.min_delta;
  if (options_.check_finite && !std::isfinite(value))
    return trainer.stop(options_.metric + " is not finite");
  const bool better = options_.larger_is_better ? value > best_ + delta : value < best_ - delta;
  if (better) best_ = value, waited_ = 0;
  else ++waited_;
  stop_if_hopeless(trainer);
}

void EarlyStopping::stop_if_hopeless(Trainer& trainer) const {
  if (waited_ >= options_.patience)
    trainer.stop(options_.metric + " has not improved for " + std::to_string(waited_) +
                 " validations");
}

std::map<std::string, double> EarlyStopping::state() const {
  return {{"best", best_}, {"waited", double(waited_)}};
}

void EarlyStopping::load_state(const std::map<std::string, double>& state) {
  best_ = number_in(state, "best"), waited_ = count_in(state, "waited");
}

// Passes validation metrics to optim::ReduceOnPlateau.

LrOnPlateau::LrOnPlateau(std::string metric, optim::PlateauOptions options)
    : metric_(std::move(metric)), options_(options) {}

void LrOnPlateau::on_fit_start(Trainer& trainer) {
  if (!trainer.validates())
    fail<UsageError>("LrOnPlateau", "nothing validates, so ", metric_,
                     " will never be looked at. Pass fit() a second loader, or leave this out.");
  if (trainer.options().schedule)
    fail<UsageError>("LrOnPlateau",
                     "a schedule sets the rates anew at each step. Use one of them.");
  if (plateau_) return;  // a second fit() continues with it
  plateau_.emplace(trainer.training().optimizer(), options_);
  if (!loaded_.empty()) plateau_->load_state(loaded_);
}

void LrOnPlateau::on_validation_end(Trainer& trainer) {
  if (!plateau_->step(trainer.metric(metric_))) return;
  PlainText text;
  text << "  " << metric_ << " has stopped improving: the learning rate is "
       << trainer.training().optimizer().lr() << " now";
  trainer.note(text.str());
}

std::map<std::string, double> LrOnPlateau::state() const {
  return plateau_ ? plateau_->state() : loaded_;
}

// Blends the inputs and targets of each batch with a permutation of the batch.

Mixup::Mixup(int64_t classes, MixupOptions options) : classes_(classes), options_(options) {
  if (classes < 2)
    fail<UsageError>("Mixup", "there are ", classes, " classes. Say how many the labels have.");
  if (!(options.alpha >= 0) || !std::isfinite(options.alpha))
    fail<UsageError>("Mixup", "alpha is ", options.alpha, ". Give a number from 0, such as 0.2.");
}

void Mixup::require_classes(const Tensor& labels) const {
  if (is_floating(labels.dtype())) return;  // one_hot() refuses them
  for (const int64_t label : labels.to_vector<int64_t>())
    if (label < 0 || label >= classes_)
      fail<UsageError>("Mixup", "the label ", label, " is none of the ", classes_,
                       " classes: an ignored sample has no probabilities to blend. Leave such "
                       "samples out of the dataset, or train without Mixup.");
}

void Mixup::on_batch_start(Trainer& trainer, data::Batch& batch) {
  const NoGrad no_grad;
  const Device device = batch.inputs.device();
  const CheckpointState& at = trainer.position();
  Generator random = data::EpochKey{options_.seed, at.epoch}.generator_for(at.batches);
  const data::MixedBatch mixed = data::mixup(
      {batch.inputs.to(Device::cpu()), batch.targets.to(Device::cpu())}, options_.alpha, random);
  require_classes(mixed.targets);
  const auto shares = [&](const Tensor& labels) { return cast(one_hot(labels, classes_), f32); };
  batch.inputs = mixed.inputs.to(device);
  batch.targets =
      (shares(mixed.targets) * mixed.share + shares(mixed.other_targets) * (1 - mixed.share))
          .to(device);
}

// Numbers for the log: learning rates, and samples and steps per second since the last record.

void LearningRateMonitor::on_batch_start(Trainer& trainer, data::Batch&) {
  rates_ = rates_of(trainer.training().optimizer());
}

void LearningRateMonitor::on_log(Trainer& trainer) {
  for (std::size_t group = 0; group < rates_.size(); ++group)
    trainer.log(rates_.size() == 1 ? "lr" : "lr/" + std::to_string(group), rates_[group]);
}

void ThroughputMonitor::begin(const Trainer& trainer) {
  since_ = std::chrono::steady_clock::now();
  samples_ = trainer.samples(), steps_ = trainer.position().step;
}

void ThroughputMonitor::on_log(Trainer& trainer) {
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - since_;
  const double steps = double(trainer.position().step - steps_);
  if (steps > 0 && passed.count() > 0) {
    trainer.log("samples_per_second", (trainer.samples() - samples_) / passed.count());
    trainer.log("steps_per_second", steps / passed.count());
  }
  begin(trainer);
}

// Reacts to a loss that is not finite: throws, ends the training, or drops the step.

NanPolicy::NanPolicy(const NanPolicyOptions& options) : options_(options) {
  if (options.patience < 1 || options.every_batches < 1)
    fail<UsageError>("NanPolicy", "patience ", options.patience, ", every_batches ",
                     options.every_batches, ". Use 1 or more of each.");
}

bool NanPolicy::on_loss(Trainer& trainer, const Tensor& loss) {
  if (batches_++ % options_.every_batches != 0) return true;
  const double value = loss.item();
  if (std::isfinite(value)) return true;
  const std::string after = "after step " + std::to_string(trainer.position().step);
  if (options_.action == OnNan::fail)
    fail<UsageError>("NanPolicy", "the loss is ", value, ' ', after,
                     ". Lower the learning rate, clip gradients, or look at this batch.");
  ++dropped_, ++in_a_row_;
  if (options_.action == OnNan::stop || in_a_row_ >= options_.patience)
    trainer.stop("the loss is not finite " + after);
  return false;
}

std::map<std::string, double> NanPolicy::state() const {
  return {{"batches", double(batches_)},
          {"dropped", double(dropped_)},
          {"in_a_row", double(in_a_row_)}};
}

void NanPolicy::load_state(const std::map<std::string, double>& state) {
  batches_ = count_in(state, "batches"), dropped_ = count_in(state, "dropped");
  in_a_row_ = count_in(state, "in_a_row");
}

// Writes rows to the file after each sampled step, and releases their memory.

void PrecisionMonitor::on_fit_start(Trainer& trainer) {
  // An exception ended the last fit(), perhaps in the middle of a step: its sample does not count.
  if (probe_) history_ = probe_->history(), write(trainer);
  probe_.emplace(trainer.training(), options_, trainer.position().step);
  probe_->load_history(history_);
}

void PrecisionMonitor::write(Trainer& trainer) {
  std::vector<policy::ProbeRow> rows = probe_->rows();
  std::vector<policy::UpdateRow> updates = probe_->updates();
  const auto unfinished = [&](const auto& row) { return row.step >= trainer.position().step; };
  std::erase_if(rows, unfinished), std::erase_if(updates, unfinished);
  if (rows.empty() && updates.empty()) return;
  policy::WorstRows found;
  found.add(rows, updates);
  const Worst worst{.underflow = found.underflow,
                    .sqnr = std::isfinite(found.sqnr) ? found.sqnr : 0,
                    .lost = found.stored.count > 0 ? found.stored.lost_share() : 0,
                    .site = found.underflow_at};
  worst_ = worst;
  if (!worst.site.empty()) {
    char share[32];
    std::snprintf(share, sizeof share, "%.3g %%", 100 * worst.underflow);
    trainer.note("precision: most underflow " + std::string(share) + " in " + worst.site);
  }
  if (const std::filesystem::path& directory = trainer.options().directory;
      !directory.empty() && trainer.rank() == 0) {
    files::Descriptor file = files::open_to_append("PrecisionMonitor", directory / "probe.jsonl");
    const std::string text = policy::json_lines(rows, updates);
    std::string_view rest = text;
    if (!files::write_all(file, rest) || !file.close())
      fail<FormatError>("PrecisionMonitor", "cannot write to ",
                        (directory / "probe.jsonl").string(), ". Is the disk full?");
  }
  probe_->clear();
}

void PrecisionMonitor::on_log(Trainer& trainer) {
  write(trainer);
  if (!worst_) return;
  trainer.log("precision/worst_underflow", worst_->underflow);
  trainer.log("precision/least_sqnr", worst_->sqnr);
  trainer.log("precision/lost_updates", worst_->lost);
}
void PrecisionMonitor::on_step_end(Trainer& trainer) { write(trainer); }
void PrecisionMonitor::on_fit_end(Trainer& trainer) {
  write(trainer);
  history_ = probe_->history();
  probe_.reset();
}

std::map<std::string, double> PrecisionMonitor::state() const {
  if (!worst_) return {};
  return {{"worst_underflow", worst_->underflow},
          {"least_sqnr", worst_->sqnr},
          {"lost_updates", worst_->lost}};
}

void PrecisionMonitor::load_state(const std::map<std::string, double>& state) {
  worst_ = Worst{.underflow = number_in(state, "worst_underflow"),
                 .sqnr = number_in(state, "least_sqnr"),
                 .lost = number_in(state, "lost_updates")};
}

std::map<std::string, Tensor> PrecisionMonitor::tensors() const {
  return probe_ ? probe_->history() : history_;
}

// The averaged weights: updates them, saves them in checkpoints, swaps them in for validation.

namespace {
/// Replaces the bits of the model's parameters while it exists.
class Lent {
 public:
  Lent(std::vector<Tensor> parameters, const std::vector<Tensor>& averages)
      : parameters_(std::move(parameters)) {
    const MemoryScope scope(MemoryUse::workspace);
    for (const Tensor& x : parameters_) kept_.push_back(x.detach().clone());
    for (std::size_t i = 0; i < parameters_.size(); ++i) copy_into(parameters_[i], averages[i]);
  }
  ~Lent() {
    for (std::size_t i = 0; i < parameters_.size(); ++i) copy_into(parameters_[i], kept_[i]);
  }
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;

 private:
  std::vector<Tensor> parameters_, kept_{};
};
}  // namespace

WeightAverage::WeightAverage(WeightAverageOptions options) : options_(options) {
  if (options_.decay && !(*options_.decay >= 0 && *options_.decay < 1))
    fail<UsageError>("WeightAverage", "decay is ", *options_.decay, ". Use 0 or more, below 1.");
  if (options_.every_steps < 1)
    fail<UsageError>("WeightAverage", "every_steps is ", options_.every_steps, ". Use 1 or more.");
}

std::vector<Tensor> WeightAverage::parameters_of(Trainer& trainer) const {
  std::vector<Tensor> parameters = trainer.training().parameters();
  if (averages_.empty()) return parameters;
  if (averages_.size() != parameters.size())
    fail<UsageError>("WeightAverage", "there are averages of ", averages_.size(),
                     " weights, the optimizer has ", parameters.size(),
                     ". Use a callback for one training only.");
  for (std::size_t i = 0; i < parameters.size(); ++i)
    if (averages_[i].shape() != parameters[i].shape())
      fail<UsageError>("WeightAverage", "average ", i, " is ", described(averages_[i]),
                       ", the weight is ", described(parameters[i]),
                       ". Use a callback for one training only.");
  return parameters;
}

void WeightAverage::on_fit_start(Trainer& trainer) {
  const std::vector<Tensor> parameters = parameters_of(trainer);
  for (std::size_t i = 0; i < averages_.size(); ++i)
    averages_[i] = averages_[i].to(parameters[i].device());
}

void WeightAverage::on_step_end(Trainer& trainer) {
  const int64_t step = trainer.position().step;
  if (step < options_.start_step || step % options_.every_steps != 0) return;
  amp::Training& training = trainer.training();
  const std::size_t count = training.parameters().size();
  const bool first = averages_.empty();
  const double share = options_.decay ? 1 - *options_.decay : 1 / double(updates_ + 1);
  for (std::size_t i = 0; i < count; ++i) {
    const Tensor weight = [&] {
      const MemoryScope scope(MemoryUse::workspace);
      return training.weight(i);
    }();
    if (first) {
      const MemoryScope scope(MemoryUse::optimizer_state);
      averages_.push_back(weight.clone());
    } else {
      backend_for(weight).lerp(weight, share, averages_[i]);
    }
  }
  ++updates_;
}

std::shared_ptr<void> WeightAverage::in_place(Trainer& trainer) const {
  if (averages_.empty()) return nullptr;
  return std::make_shared<Lent>(parameters_of(trainer), averages_);
}

std::shared_ptr<void> WeightAverage::during_validation(Trainer& trainer) {
  return options_.validates ? in_place(trainer) : nullptr;
}

std::map<std::string, Tensor> WeightAverage::tensors() const {
  std::map<std::string, Tensor> result;
  for (std::size_t i = 0; i < averages_.size(); ++i) result[std::to_string(i)] = averages_[i];
  return result;
}

void WeightAverage::load_tensors(const std::map<std::string, Tensor>& tensors) {
  averages_.clear();
  const MemoryScope scope(MemoryUse::optimizer_state);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto found = tensors.find(std::to_string(i));
    if (found == tensors.end())
      fail<UsageError>("WeightAverage", "the checkpoint has ", tensors.size(),
                       " averages, but none of number ", i, ". It was not written by this class.");
    averages_.push_back(found->second.clone());
  }
}

std::map<std::string, double> WeightAverage::state() const {
  return {{"updates", double(updates_)}};
}

void WeightAverage::load_state(const std::map<std::string, double>& state) {
  updates_ = count_in(state, "updates");
}

}  // namespace halftone::train
