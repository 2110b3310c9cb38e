// Each batch adds a few sums, outside of recording and of any autocast region. For numbers on the
// host these are plain loops.
#include <halftone/train/metrics.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include <halftone/amp/autocast.h>
#include <halftone/autograd/ops.h>
#include <halftone/autograd/slots.h>
#include <halftone/core/math.h>

namespace halftone::train {

double number_in(const std::map<std::string, double>& numbers, const std::string& name) {
  const auto found = numbers.find(name);
  return found == numbers.end() ? 0 : found->second;
}

int64_t count_in(const std::map<std::string, double>& numbers, const std::string& name) {
  const double value = number_in(numbers, name);
  return std::isnan(value) ? 0 : int64_t(std::clamp(value, 0.0, 0x1p53));
}

std::vector<double> rates_of(const optim::Optimizer& optimizer) {
  std::vector<double> rates(std::size_t(optimizer.group_count()));
  for (std::size_t group = 0; group < rates.size(); ++group)
    rates[group] = optimizer.lr(int(group));
  return rates;
}

void set_rates(optim::Optimizer& optimizer, const std::vector<double>& rates) {
  for (std::size_t group = 0; group < rates.size(); ++group)
    optimizer.set_lr(rates[group], int(group));
}

namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

/// Inside its scope operations run as written: they are not recorded, and no policy casts them.
struct Plainly {
  NoGrad no_grad{};
  amp::Autocast no_casts = amp::Autocast::disabled();
};

void check_weight(std::string_view op, double weight) {
  if (!(weight >= 0) || std::isinf(weight))
    fail<UsageError>(op, "the weight is ", weight, ". Pass the number of samples.");
}

void check_value(std::string_view op, const Tensor& value, double weight) {
  check_weight(op, weight);
  check::defined(op, "the value", value);
  check::floating(op, value);
  if (value.numel() != 1)
    fail<ShapeError>(op, "the value is ", described(value), ". Pass one number, such as a mean.");
}

/// Returns weight * value as a new f64 scalar, on the value's device.
Tensor weighted(const Tensor& value, double weight) {
  return reshape(cast(value, f64), {}) * weight;
}

/// Computes sum += term without waiting; the sum moves to the term's device.
void accumulate(Tensor& sum, const Tensor& term) {
  sum = sum.defined() ? sum.to(term.device()) + term : term;
}

}  // namespace

std::vector<double> DeviceRows::take() {
  if (rows_.empty()) return {};
  const Plainly scope;
  for (Tensor& row : rows_) row = row.to(rows_.back().device());
  return cat(std::exchange(rows_, {}), 0).to_vector<double>();
}

void RunningMean::update(const Tensor& value, double weight) {
  check_value("RunningMean", value, weight);
  if (value.device() == Device::cpu()) return update(value.item(), weight);
  update(value, full({}, weight, f64, value.device()));
}

void RunningMean::update(const Tensor& value, const Tensor& weight) {
  check_value("RunningMean", value, 1);
  check::defined("RunningMean", "the weight", weight);
  if (weight.numel() != 1 || weight.dtype() != f64)
    fail<ShapeError>("RunningMean", "the weight is ", described(weight),
                     ". Pass an f64 scalar, the number of samples.");
  if (value.device() == Device::cpu()) return update(value.item(), weight.item());
  const Plainly scope;
  rows_.add(cat({reshape(cast(value, f64), {1}), reshape(weight, {1})}, 0));
  if (rows_.full()) static_cast<void>(sums());
}

void RunningMean::update(double value, double weight) {
  check_weight("RunningMean", weight);
  if (weight == 0) return;  // the mean of no samples is NaN
  sums_ += {.total = ExactSum::product(weight, value), .weight = weight};
}

const MetricSums& RunningMean::sums() const {
  const std::vector<double> rows = rows_.take();
  for (std::size_t i = 0; i < rows.size(); i += 2)
    if (const double value = rows[i], weight = rows[i + 1]; weight != 0)
      sums_ += {.total = ExactSum::product(weight, value), .weight = weight};
  return sums_;
}

double RunningMean::value() const {
  const MetricSums& all = sums();
  return all.weight == 0 ? nan : double(all.total / all.weight);
}

WindowMean::WindowMean(int64_t window) : window_(window) {
  if (window < 1) fail<UsageError>("WindowMean", "the window is ", window, ". Use 1 or more.");
}

void WindowMean::update(const Tensor& value, double weight) {
  check_value("WindowMean", value, weight);
  if (weight == 0) return;
  const Plainly scope;
  last_.push_back({weighted(value, weight), weight});
  if (int64_t(last_.size()) > window_) last_.pop_front();
}

double WindowMean::value() const {
  const Plainly scope;
  Tensor sum;
  double weight = 0;
  for (const Weighted& one : last_) accumulate(sum, one.product), weight += one.weight;
  return weight == 0 ? nan : sum.item() / weight;
}

double Perplexity::value() const { return elementary::exp(loss_.value()); }

TopKAccuracy::TopKAccuracy(int64_t k, int64_t ignore_index) : k_(k), ignore_index_(ignore_index) {
  if (k < 1) fail<UsageError>("TopKAccuracy", "k is ", k, ". Use 1 or more.");
}

void TopKAccuracy::check(const Tensor& logits, const Tensor& targets) const {
  constexpr std::string_view op = "TopKAccuracy";
  check::defined(op, "the logits", logits);
  check::defined(op, "the targets", targets);
  check::floating(op, logits);
  if (targets.dtype() != i64 && targets.dtype() != i32)
    fail<DTypeError>(op, "the targets are ", described(targets),
                     ". Pass i64 or i32 class numbers.");
  if (targets.device() != logits.device())
    fail<DeviceError>(op, "logits are on ", logits.device(), ", targets on ", targets.device(),
                      ". Move one.");
  Shape expected = logits.shape();
  if (logits.rank() > 0) expected.erase(logits.rank() - 1);
  if (logits.rank() == 0 || targets.shape() != expected)
    fail<ShapeError>(op, "logits ", described(logits), " and targets ", described(targets),
                     " do not fit. Pass [.., classes] and [..].");
  if (logits.size(-1) < k_)
    fail<ShapeError>(op, "k is ", k_, ", and logits ", described(logits), " have only ",
                     logits.size(-1), " classes. Use a smaller k.");
}

namespace {
/// Returns the number of rows of `logits` whose target is among the k largest.
template <class T>
int64_t right_rows(const Tensor& logits, std::span<const int64_t> targets, int64_t k,
                   int64_t ignored) {
  const auto classes = logits.size(-1);
  const T* row = logits.data<T>();
  int64_t right = 0;
  for (const int64_t target : targets) {
    if (target != ignored && target >= 0 && target < classes) {
      const T own = row[target];
      int64_t ahead = 0;
      for (int64_t c = 0; c < classes;
           ++c)  // not "greater", negated: a NaN must not count as small
        ahead += !(row[c] <= own) || (row[c] == own && c < target);
      right += ahead < k;
    }
    row += classes;
  }
  return right;
}
}  // namespace

void TopKAccuracy::update(const Tensor& logits, const Tensor& given) {
  const Plainly scope;
  check(logits, given);
  const Tensor targets = cast(given, i64);
  if (targets.numel() == 0) return;
  if (logits.device() != Device::cpu()) return update_on_device(logits, targets);
  const bool wide = logits.dtype() == f64;
  const Tensor x = views::contiguous(wide ? logits : cast(logits, f32)),
               t = views::contiguous(targets);
  const std::span<const int64_t> numbers(t.data<int64_t>(), std::size_t(t.numel()));
  on_host_.total += double(wide ? right_rows<double>(x, numbers, k_, ignore_index_)
                                : right_rows<float>(x, numbers, k_, ignore_index_));
  on_host_.weight += double(t.numel() - std::ranges::count(numbers, ignore_index_));
}

/// Does the same with operations on the whole batch, without waiting.
void TopKAccuracy::update_on_device(const Tensor& logits, const Tensor& targets) {
  const int64_t classes = logits.size(-1);
  if (!classes_.defined() || classes_.numel() != classes || classes_.device() != logits.device())
    classes_ = arange(classes, i64, logits.device());
  Shape column = targets.shape();
  column.push_back(1);
  const Tensor nothing =
      scalar(-std::numeric_limits<double>::infinity(), logits.dtype(), logits.device());
  const Tensor is_target = equal(classes_, reshape(targets, column));
  const Tensor own = max(where(is_target, logits, nothing), {-1}, true);
  // f32 counts up to 2^24 classes exactly.
  const Tensor not_larger = sum(cast(less_equal(logits, own), f32), {-1});
  const Tensor before = cast(less(classes_, reshape(targets, column)), f32);
  const Tensor tied_before = sum(cast(equal(logits, own), f32) * before, {-1});
  const Tensor in_top =
      greater(not_larger - tied_before, scalar(double(classes - k_), f32, not_larger.device()));
  const Tensor counts = cast(not_equal(targets, scalar(ignore_index_, i64, targets.device())), f64);
  accumulate(correct_, sum(cast(in_top, f64) * counts));
  accumulate(samples_, sum(counts));
}

double TopKAccuracy::value() const {
  const MetricSums all = sums();
  return all.total / all.weight;  // 0 / 0 if there were no targets, or all were ignored
}

MetricSums TopKAccuracy::sums() const {
  if (!samples_.defined()) return on_host_;
  MetricSums all = on_host_;
  return all += {.total = correct_.item(), .weight = samples_.item()};
}

void TopKAccuracy::restore(const MetricSums& sums) {
  reset();
  on_host_ = sums;
}

namespace {
/// Returns outputs and targets as flat f64 tensors, after checking that they match.
std::pair<Tensor, Tensor> compared(std::string_view op, const Tensor& outputs,
                                   const Tensor& targets) {
  check::floating(op, outputs), check::floating(op, targets);
  if (outputs.shape() != targets.shape())
    fail<ShapeError>(op, "the outputs are ", described(outputs), ", the targets ",
                     described(targets), ". They must have the same shape.");
  return {cast(outputs, f64), cast(targets, f64)};
}
}  // namespace

void MeanAbsoluteError::update(const Tensor& outputs, const Tensor& targets) {
  const Plainly scope;
  const auto [y, t] = compared("MeanAbsoluteError", outputs, targets);
  mean_.update(mean(abs(y - t)), double(t.numel()));
}

void R2Score::update(const Tensor& outputs, const Tensor& targets) {
  const Plainly scope;
  const auto [y, t] = compared("R2Score", outputs, targets);
  if (t.numel() == 0) return;
  const Tensor own_mean = mean(t);
  const Tensor count = full({1}, double(t.numel()), f64, t.device());
  rows_.add(cat({reshape(sum(square(y - t)), {1}), reshape(sum(square(t - own_mean)), {1}),
                 reshape(own_mean, {1}), count},
                0));
  if (rows_.full()) static_cast<void>(sums());
}

const MetricSums& R2Score::sums() const {
  const std::vector<double> rows = rows_.take();
  for (std::size_t i = 0; i < rows.size(); i += 4) {
    const double residuals = rows[i], spread = rows[i + 1], mean = rows[i + 2], n = rows[i + 3];
    const ExactSum total = ExactSum::product(mean, n);
    sums_ += {.total = residuals, .weight = n, .targets = total, .squares = spread};
    sums_.squares += total.squared() / n;
  }
  return sums_;
}

double R2Score::value() const {
  const MetricSums& all = sums();
  ExactSum spread = all.squares;
  spread += -(all.targets.squared() / all.weight);
  // For equal targets, `spread` is only the rounding error of 106 bits.
  return spread > all.squares * 0x1p-90 ? 1 - double(all.total / double(spread)) : nan;
}

}  // namespace halftone::train
