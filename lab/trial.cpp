// Every policy gets its own model with the kept weights, and the same batches and random numbers.
#include <halftone/lab/trial.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <set>

#include <nlohmann/json.hpp>

#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/core/memory.h>
#include <halftone/core/random.h>
#include <halftone/core/tensor.h>
#include <halftone/lab/table.h>
#include <halftone/nn/module.h>
#include <halftone/amp/policy.h>
#include <halftone/amp/probe.h>

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

double mean_bits(const policy::Session& session) {
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

/// Keeps what operations get in place of parameters, from the last pass.
class ParameterUses final : public policy::Observer {
 public:
  explicit ParameterUses(const nn::Module& model) {
    for (const auto& [name, x] : model.named_parameters()) names_.emplace(x.storage().get(), name);
  }
  bool begin_pass(int64_t) override {
    uses.clear();
    return true;
  }
  void tensor(const policy::Seen& seen, const Tensor&, const Tensor& after) override {
    if (seen.role > policy::Role::bias) return;
    operands_.resize(std::max(operands_.size(), seen.input + 1));
    operands_[seen.input] = after.detach();
  }
  void ran(std::string_view site, std::span<const Tensor> inputs, Computation&,
           const Tensor&) override {
    const std::vector<Tensor> operands = std::move(operands_);
    operands_.clear();
    for (std::size_t i = 0; i < std::min(inputs.size(), operands.size()); ++i) {
      if (!inputs[i].defined() || !operands[i].defined()) continue;
      if (const auto found = names_.find(inputs[i].storage().get()); found != names_.end())
        uses.push_back({found->second, std::string(site) + ' ' + std::to_string(i), operands[i]});
    }
  }

  std::vector<ParameterUse> uses{};

 private:
  std::map<const Storage*, std::string> names_{};
  std::vector<Tensor> operands_{};
};

}  // namespace

struct Trial::Prepared {
  Workload work;
  std::unique_ptr<optim::Optimizer> optimizer;
  amp::Training training;

  Prepared(const Trial& trial, const amp::Policy& policy)
      : work(with_weights(trial)),
        optimizer(optimizer_of(work)),
        training(amp::apply(policy, *work.model, *optimizer)) {}

 private:
  static Workload with_weights(const Trial& trial) {
    Workload work = trial.make_();
    nn::load_state_dict(*work.model, trial.weights_);
    return work;
  }
};

Tensor Trial::loss_of_batch(Prepared& prepared, std::size_t batch) const {
  manual_seed(options_.seed + batch);
  return loss_of(prepared.work, prepared.training, batches_[batch]);
}

Trial::Trial(std::function<Workload()> make, const amp::Policy& reference, TrialOptions options)
    : make_(std::move(make)), options_(options), reference_policy_(reference) {
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

Trial::Pass Trial::run(const amp::Policy& strategy) const {
  Prepared prepared(*this, strategy);
  amp::Training& training = prepared.training;
  const auto forward = [&](std::size_t i) { return loss_of_batch(prepared, i); };
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

void Trial::watch(const amp::Policy& policy, const std::shared_ptr<policy::Observer>& observer,
                  const std::function<void(double loss, double scale)>& after_batch) const {
  Prepared prepared(*this, policy::watched(policy));
  amp::Training& training = prepared.training;
  const policy::Observation observation("trial", training, observer);
  for (std::size_t i = 0; i < batches_.size(); ++i) {
    const Tensor loss = loss_of_batch(prepared, i);
    training.backward(loss);
    const Tensor scale = training.last_pass().scale;
    after_batch(loss.item(), scale.defined() ? scale.item() : 1);
    skip_step(training);
  }
}

std::vector<ParameterTrace> Trial::traces(int64_t probes) const {
  Prepared prepared(*this, reference_policy_);
  std::vector<ParameterTrace> result;
  std::vector<Tensor> parameters;
  for (const auto& [name, x] : prepared.work.model->named_parameters()) {
    if (!x.requires_grad()) continue;
    result.push_back({.name = name, .elements = x.numel()});
    parameters.push_back(x);
  }
  // The batches' probes are independent: squares of the intervals' halves add up.
  std::vector<double> squares(parameters.size());
  const double share = 1 / double(batches_.size());
  for (std::size_t i = 0; i < batches_.size(); ++i) {
    const auto of_batch =
        autograd::hutchinson_trace(loss_of_batch(prepared, i), parameters, {.samples = probes});
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      result[p].trace.trace += share * of_batch[p].trace;
      squares[p] += std::pow(share * (of_batch[p].high - of_batch[p].trace), 2);
    }
  }
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    autograd::TraceEstimate& estimate = result[p].trace;
    estimate.low = estimate.trace - std::sqrt(squares[p]);
    estimate.high = estimate.trace + std::sqrt(squares[p]);
  }
  return result;
}

std::vector<ParameterUse> Trial::uses_of_parameters(const amp::Policy& policy) const {
  Prepared prepared(*this, policy::watched(policy));
  const auto uses = std::make_shared<ParameterUses>(*prepared.work.model);
  const policy::Observation observation("trial", prepared.training, uses);
  // The first pass fills the histories of scales.
  for (int pass = 0; pass < 2; ++pass) {
    prepared.training.backward(loss_of_batch(prepared, 0));
    skip_step(prepared.training);
  }
  return std::move(uses->uses);
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

Measurement Trial::set_base(const amp::Policy& base) {
  base_ = run(policy::watched(base));
  return measured(base_);
}

Measurement Trial::measure(const amp::Policy& policy) const {
  return measured(run(policy::watched(policy)));
}

// Helpers that several experiments use.

amp::Policy policy_of(std::string_view name, std::string_view extends, std::string_view more) {
  PlainText text;
  text << R"({"halftone_policy": 1, "name": ")" << name << R"(", "extends": ")" << extends << '"'
       << (more.empty() ? "" : ", ") << more << '}';
  return policy::read_text(text.str(), name);
}

std::string hash_of(std::span<const Tensor> tensors) {
  policy::Fingerprint fingerprint;
  for (const Tensor& x : tensors) {
    // Uses the order of the indices: a clone would keep the strides of x.
    const Tensor host = views::contiguous(x.detach().to(Device::cpu()));
    PlainText head;
    head << host.shape() << ' ' << host.dtype();
    fingerprint.add(head.str());
    fingerprint.add({reinterpret_cast<const char*>(host.raw_data()), std::size_t(host.bytes())});
  }
  return fingerprint.text();
}

double root_mean_square(std::span<const double> x) {
  double sum = 0;
  for (const double v : x) sum += v * v;
  return std::sqrt(sum / double(x.size()));
}

double signal_to_noise(const Tensor& x, const Tensor& y) {
  const std::vector<double> before = x.to_vector<double>(), after = y.to_vector<double>();
  double signal = 0, noise = 0;
  for (std::size_t i = 0; i < before.size(); ++i)
    signal += before[i] * before[i], noise += (before[i] - after[i]) * (before[i] - after[i]);
  return 10 * std::log10(signal / noise);
}

// Hashes as rows, in files, and compared.

using nlohmann::ordered_json;

bool TraceRow::same_place(const TraceRow& other) const {
  return step == other.step && site == other.site && role == other.role && input == other.input;
}

bool Tracer::begin_pass(int64_t step) {
  step_ = step;
  return step % every_ == 0;
}

void Tracer::tensor(const policy::Seen& seen, const Tensor&, const Tensor& after) {
  double squares = 0;
  for (const double x : after.to_vector<double>()) squares += x * x;
  PlainText dtype;
  dtype << after.dtype();
  rows_.push_back(
      {.step = step_,
       .site = seen.site,
       .role = seen.role,
       .input = seen.input,
       .dtype = dtype.str(),
       .shape = after.shape(),
       .hash = hash_of(std::span(&after, 1)),
       .root_mean_square = after.numel() > 0 ? std::sqrt(squares / double(after.numel())) : 0});
}

std::string Tracer::lines() const {
  std::string text;
  for (const TraceRow& row : rows_) {
    ordered_json line{{"step", row.step},   {"site", row.site},   {"role", policy::name(row.role)},
                      {"input", row.input}, {"dtype", row.dtype}, {"shape", ordered_json::array()},
                      {"hash", row.hash}};
    for (int i = 0; i < row.shape.rank(); ++i) line["shape"].push_back(row.shape[i]);
    line["root_mean_square"] =
        std::isfinite(row.root_mean_square) ? ordered_json(row.root_mean_square) : ordered_json();
    text += line.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + '\n';
  }
  return text;
}

std::vector<TraceRow> read_trace(std::string_view op, const std::filesystem::path& path) {
  std::vector<TraceRow> rows;
  const int64_t skipped = each_json_line(op, path, [&](const nlohmann::json& line) {
    const auto step = count_in(line, "step"), input = count_in(line, "input");
    const auto role = policy::role_named(text_in(line, "role"));
    TraceRow row{.site = text_in(line, "site"),
                 .dtype = text_in(line, "dtype"),
                 .hash = text_in(line, "hash"),
                 .root_mean_square = number_in(line, "root_mean_square").value_or(NAN)};
    const auto& shape = array_in(line, "shape");
    if (!step || !input || !role || row.hash.size() != 16 ||
        row.hash.find_first_not_of("0123456789abcdef") != std::string::npos || shape.size() > 8)
      return false;
    std::vector<int64_t> sizes;
    for (const nlohmann::json& size : shape)
      if (size.is_number_unsigned() && size.get<uint64_t>() < (uint64_t(1) << 40))
        sizes.push_back(size.get<int64_t>());
      else return false;
    row.step = *step, row.role = *role, row.input = std::size_t(*input);
    row.shape = Shape(sizes);
    rows.push_back(std::move(row));
    return true;
  });
  if (skipped > 0)
    fail<FormatError>(
        op, printable(path.string()), ": ", skipped,
        " lines are not rows of a trace. Make it anew with halftone-lab run --trace.");
  return rows;
}

std::set<int64_t> steps_of(const std::vector<TraceRow>& rows) {
  std::set<int64_t> steps;
  for (const TraceRow& row : rows) steps.insert(row.step);
  return steps;
}

std::optional<TraceDifference> first_difference(const std::vector<TraceRow>& there,
                                                const std::vector<TraceRow>& here) {
  const std::size_t count = std::max(there.size(), here.size());
  for (std::size_t i = 0; i < count; ++i) {
    const bool both = i < there.size() && i < here.size();
    if (both && there[i].same_place(here[i]) && there[i].hash == here[i].hash) continue;
    TraceDifference difference{.row = i};
    if (i < there.size()) difference.there = there[i];
    if (i < here.size()) difference.here = here[i];
    return difference;
  }
  return {};
}

namespace {
std::string place_of(const TraceRow& row) {
  PlainText text;
  text << "step " << row.step << ", " << printable(row.site) << ", " << policy::name(row.role);
  if (row.input > 0) text << ' ' << row.input;
  text << ' ' << row.shape << ' ' << printable(row.dtype);
  return text.str();
}
}  // namespace

std::string text_of(const TraceDifference& difference) {
  const auto &there = difference.there, &here = difference.here;
  if (!there || !here)
    return std::string(there ? "the second" : "the first") + " ends before " +
           place_of(there ? *there : *here);
  if (!there->same_place(*here) || there->shape != here->shape || there->dtype != here->dtype)
    return "other tensors: " + place_of(*there) + " and " + place_of(*here);
  const double a = there->root_mean_square, b = here->root_mean_square;
  std::string text =
      place_of(*here) + ": other bits; root mean squares " + number(a, 7) + " and " + number(b, 7);
  if (std::isfinite(a) && std::isfinite(b) && a != b)
    text += " differ by " + number(std::abs(a - b) / std::max(std::abs(a), std::abs(b)), 2);
  return text;
}

}  // namespace halftone::lab
