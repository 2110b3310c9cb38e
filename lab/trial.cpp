// Every policy gets its own model with the kept weights, and the same batches and random numbers.
#include <halftone/lab/trial.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <set>

#include <halftone/core/factory.h>
#include <halftone/core/memory.h>
#include <halftone/core/random.h>
#include <halftone/nn/state_dict.h>
#include <halftone/policy/probe.h>

namespace halftone::lab {

namespace {

using Clock = std::chrono::steady_clock;
constexpr double infinite = std::numeric_limits<double>::infinity();

double distance(const std::vector<float>& x, const std::vector<float>& y) {
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double d = double(x[i]) - double(y[i]);
    sum += d * d;
  }
  return std::isfinite(sum) ? std::sqrt(sum) : infinite;
}

int64_t kept_bytes() {
  const MemoryReport report = memory_report();
  return report.now_of(MemoryUse::activation) + report.now_of(MemoryUse::cast_cache);
}

/// Collects the quantized tensors of a forward pass. Those alive afterwards were kept for backward.
class QuantizedTensors final : public policy::Observer {
 public:
  bool begin_pass(int64_t) override { return true; }
  void tensor(const policy::Seen& seen, const Tensor&, const Tensor& after) override {
    if (seen.quantizer && after.defined())
      seen_.push_back({after.storage(), double(after.bytes()),
                       double(after.numel()) * seen.quantizer->bits_per_element() / 8});
  }
  /// Returns the bytes that native formats would save.
  double saving() const {
    double sum = 0;
    std::set<const Storage*> counted;
    for (const One& one : seen_)
      if (const auto storage = one.storage.lock(); storage && counted.insert(storage.get()).second)
        sum += one.bytes - one.native;
    return sum;
  }

 private:
  struct One {
    std::weak_ptr<Storage> storage;
    double bytes, native;
  };
  std::vector<One> seen_{};
};

double mean_bits(const policy::PolicySession& session) {
  double bits = 0, flops = 0;
  for (const policy::ResolvedSite& site : session.resolved()) {
    if (site.flops <= 0) continue;
    double own = 0;
    int operands = 0;
    for (std::size_t i = 0; i < site.operands.size() && i < site.roles.size(); ++i) {
      const std::optional<DType> dtype = site.operands[i];
      if (!dtype || !is_floating(*dtype) || site.roles[i] == policy::Role::bias) continue;
      const Quantizer* const quantizer = site.treatment->quantizer(site.roles[i], i);
      own += quantizer ? quantizer->bits_per_element() : 8 * double(size_of(*dtype));
      ++operands;
    }
    if (operands > 0) bits += site.flops * own / operands, flops += site.flops;
  }
  return flops > 0 ? bits / flops : 0;
}

/// Appends the gradients of all parameters, one after the other, divided by the loss scale.
void append_gradients(amp::Training& training, std::vector<float>& to) {
  const Tensor scale = training.last_pass().scale;
  const auto factor = float(scale.defined() ? 1 / scale.item() : 1.0);
  for (const Tensor& parameter : training.model().parameters()) {
    if (!parameter.grad().defined()) continue;
    for (const float g : parameter.grad().to_vector<float>()) to.push_back(g * factor);
  }
}

void skip_step(amp::Training& training) {
  if (training.region().session)
    training.region().session->end_step(training.optimizer(), ones({}));
  training.zero_grad();
}

}  // namespace

Trial::Trial(std::function<Workload()> make, const amp::Strategy& reference, TrialOptions options)
    : make_(std::move(make)), options_(options) {
  if (options.batches < 1 || options.warm_up < 0 || options.rounds < 1)
    fail<UsageError>("trial", options.batches, " batches, ", options.warm_up, " steps, ",
                     options.rounds, " rounds. Use at least one batch and one round.");
  Workload work = make_();
  const std::unique_ptr<optim::Optimizer> optimizer = optimizer_of(work);
  amp::Training training = training_of(reference, work, *optimizer);
  int64_t steps = 0;
  while (std::ssize(batches_) < options.batches) {
    const int64_t before = steps;
    data::DataLoader loader = work.train();
    for (const data::Batch& batch : loader) {
      if (steps++ >= options.warm_up) batches_.push_back(batch);
      if (std::ssize(batches_) == options.batches) break;
      if (steps > options.warm_up) continue;
      training.zero_grad();
      begin_step(training, steps - 1);
      training.backward(loss_of(work, training, batch));
      if (work.clip_norm > 0) training.clip_grad_norm(work.clip_norm);
      training.step();
    }
    if (steps == before)
      fail<UsageError>("trial", "the workload's training data have no batches. Add some.");
  }
  for (const auto& [name, x] : nn::state_dict(*work.model)) weights_.emplace(name, x.clone());
  reference_ = run(reference);
  size_ = distance(reference_.gradients, std::vector<float>(reference_.gradients.size()));
  if (!(size_ > 0) || !std::isfinite(size_))
    fail<UsageError>("trial", "the gradients under ", reference.name, " have the norm ", size_,
                     ", so nothing can be held against them. Choose another reference.");
  base_ = reference_;
}

Trial::Pass Trial::run(const amp::Strategy& strategy) const {
  const Workload work = make_();
  nn::load_state_dict(*work.model, weights_);
  const std::unique_ptr<optim::Optimizer> optimizer = optimizer_of(work);
  amp::Training training = amp::apply(strategy, *work.model, *optimizer);
  const auto forward = [&](std::size_t i) {
    manual_seed(options_.seed + i);
    return loss_of(work, training, batches_[i]);
  };
  // A first pass is not measured: it fills the histories of scales and lets kernels make their
  // plans.
  training.backward(forward(0));
  skip_step(training);
  Pass pass;
  pass.cost.milliseconds = infinite;
  for (int round = 0; round < options_.rounds; ++round)
    for (std::size_t i = 0; i < batches_.size(); ++i) {
      const Clock::time_point began = Clock::now();
      const Tensor loss = forward(i);
      training.backward(loss);
      pass.cost.milliseconds =
          std::min(pass.cost.milliseconds,
                   1e3 * std::chrono::duration<double>(Clock::now() - began).count());
      if (round == 0)
        append_gradients(training, pass.gradients), pass.losses.push_back(loss.item());
      skip_step(training);
    }
  const auto quantized = std::make_shared<QuantizedTensors>();
  const policy::Observation observation("trial", training, quantized);
  const int64_t before = kept_bytes();
  const Tensor loss = forward(0);
  pass.cost.bytes = double(kept_bytes() - before) - quantized->saving();
  if (const auto session = observation.session()) pass.cost.bits = mean_bits(*session);
  return pass;
}

void Trial::watch(const policy::PolicyFile& policy,
                  const std::shared_ptr<policy::Observer>& observer,
                  const std::function<void(double loss, double scale)>& after_batch) const {
  const Workload work = make_();
  nn::load_state_dict(*work.model, weights_);
  const std::unique_ptr<optim::Optimizer> optimizer = optimizer_of(work);
  amp::Training training = amp::apply(policy::watched_strategy_of(policy), *work.model, *optimizer);
  const policy::Observation observation("trial", training, observer);
  for (std::size_t i = 0; i < batches_.size(); ++i) {
    manual_seed(options_.seed + i);
    const Tensor loss = loss_of(work, training, batches_[i]);
    training.backward(loss);
    const Tensor scale = training.last_pass().scale;
    after_batch(loss.item(), scale.defined() ? scale.item() : 1);
    skip_step(training);
  }
}

Measurement Trial::measured(const Pass& pass) const {
  Measurement result = pass.cost;
  if (pass.gradients.size() != reference_.gradients.size())
    fail<UsageError>("trial", "the policy leaves ", pass.gradients.size(),
                     " elements with gradients, the reference ", reference_.gradients.size(),
                     ". Compare policies that train the same parameters.");
  result.error = distance(pass.gradients, reference_.gradients) / size_;
  result.added = distance(pass.gradients, base_.gradients) / size_;
  double difference = 0, sum = 0;
  for (std::size_t i = 0; i < pass.losses.size(); ++i)
    difference += std::abs(pass.losses[i] - reference_.losses[i]),
        sum += std::abs(reference_.losses[i]);
  result.loss_error = difference / sum;
  double change = 0, squares = 0, of_base = 0;
  const auto count = double(pass.losses.size());
  for (std::size_t i = 0; i < pass.losses.size(); ++i) {
    const double moved = pass.losses[i] - base_.losses[i];
    change += moved, squares += moved * moved, of_base += std::abs(base_.losses[i]);
  }
  result.loss_change = change / of_base;
  result.loss_moved = std::sqrt(squares * count) / of_base;
  return result;
}

Measurement Trial::set_base(const policy::PolicyFile& base) {
  base_ = run(policy::watched_strategy_of(base));
  return measured(base_);
}

Measurement Trial::measure(const policy::PolicyFile& policy) const {
  return measured(run(policy::watched_strategy_of(policy)));
}

}  // namespace halftone::lab
