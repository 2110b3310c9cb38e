// Metrics, and sums that do not depend on order.
#pragma once

#include <cmath>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include <halftone/core/error.h>
#include <halftone/core/tensor.h>
#include <halftone/optim/optimizer.h>

namespace halftone::train {

// Reading numbers back from a checkpoint: whatever is in it, they are numbers.

/// Returns the number of that name, or 0 if there is none.
double number_in(const std::map<std::string, double>& numbers, const std::string& name);

/// Returns the number of that name as an integer, clamped to the range from 0 to 2^53, where
/// doubles hold every integer. Returns 0 for NaN, and if there is none.
int64_t count_in(const std::map<std::string, double>& numbers, const std::string& name);

// Read and set the learning rates of all parameter groups at once.

std::vector<double> rates_of(const optim::Optimizer& optimizer);

void set_rates(optim::Optimizer& optimizer, const std::vector<double>& rates);

// A sum that depends on its terms but not on their order, so that metrics have the same bits
// however batches are shared among processes.

/// A sum of doubles, kept as a double and its rounding error: about 106 bits together. Sums of the
/// same terms in two orders round to the same double, unless bits that were lost beyond those 106
/// decide, as they may after large terms cancel. The algorithms are the error-free sum of Knuth
/// (1969) and the error-free product of Dekker (1971). A sum that is not finite stays so.
class ExactSum {
 public:
  constexpr ExactSum() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): a double is an exact sum
  constexpr ExactSum(double value, double rest = 0) : value_(value), rest_(rest) {}
  // NOLINTNEXTLINE(google-explicit-constructor): and converts back to a double
  constexpr operator double() const { return value_; }
  constexpr double rest() const { return rest_; }

  ExactSum& operator+=(const ExactSum& x) {
    const double sum = value_ + x.value_, from = sum - value_;
    const double lost = (value_ - (sum - from)) + (x.value_ - from);
    return *this = rounded(sum, lost + rest_ + x.rest_);
  }

  static ExactSum product(double a, double b) { return rounded(a * b, std::fma(a, b, -(a * b))); }
  ExactSum squared() const {
    const ExactSum high = product(value_, value_);
    return rounded(high, high.rest() + 2 * value_ * rest_);
  }
  ExactSum operator/(double x) const {
    const double high = value_ / x;
    return rounded(high, (std::fma(-high, x, value_) + rest_) / x);
  }
  ExactSum operator-() const { return {-value_, -rest_}; }

 private:
  static ExactSum rounded(double value, double rest) {
    const double sum = value + rest;
    return std::isfinite(sum) ? ExactSum(sum, rest - (sum - value)) : ExactSum(value, 0);
  }

  double value_ = 0, rest_ = 0;
};

// The numbers of a training by name: a std::map whose at() throws an error that lists the names.

/// A map from names ("train/loss", "val/top1", ...) to the last number of each.
struct MetricValues : std::map<std::string, double> {
  MetricValues() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): it is a map of numbers
  MetricValues(std::map<std::string, double> values)
      : std::map<std::string, double>(std::move(values)) {}

  /// Returns the number of a name. Throws a UsageError that lists the known names if there is none.
  double at(const std::string& name) const {
    const auto found = find(name);
    if (found != end()) return found->second;
    std::string names;
    bool trained = false, validated = !name.starts_with("val/");
    for (const auto& [known, value] : *this) {
      names += (names.empty() ? "" : ", ") + known;
      trained = trained || known.starts_with("train/");
      validated = validated || known.starts_with("val/");
    }
    fail<UsageError>("metrics", "there is no number \"", name,
                     "\" among: ", names.empty() ? "none" : names,
                     validated || !trained
                         ? ". Ask for one of these."
                         : ". Those of val/ come from validation: pass fit() a second loader.");
  }
};

// Running metrics over an epoch or a window: update() for each batch, value() at any time, reset()
// to start again. Numbers on a GPU are added on the host later, many batches at a time: update()
// waits for the GPU once in 64 batches, value() always. A metric without samples is NaN.

/// The sums over batches from which a metric computes its value, usually total / weight.
/// Checkpoints store these sums, and the sums of several processes are added.
struct MetricSums {
  ExactSum total{}, weight{};
  ExactSum targets{}, squares{};  // sums of the targets and of their squares, if the metric needs
                                  // them

  MetricSums& operator+=(const MetricSums& more) {
    total += more.total, weight += more.weight, targets += more.targets, squares += more.squares;
    return *this;
  }
};

/// Rows of numbers, one for each batch, that a GPU may still be computing.
class DeviceRows {
 public:
  /// Adds `row`, f64 [k], without waiting for it.
  void add(Tensor row) { rows_.push_back(std::move(row)); }
  bool full() const { return rows_.size() >= 64; }
  /// Returns the numbers of all rows, row after row, and removes the rows. Waits for the GPU.
  std::vector<double> take();

 private:
  std::vector<Tensor> rows_;
};

/// The weighted mean of numbers, usually of losses with the sizes of their batches.
class RunningMean {
 public:
  /// Adds `value`, a floating tensor of one element: the mean over `weight` samples. A weight of 0
  /// adds nothing. Throws DTypeError if the value is not floating, ShapeError if it does not have
  /// one element, UsageError if the weight is negative or not finite.
  void update(const Tensor& value, double weight = 1);
  /// The same for a weight that is an f64 scalar on the value's device.
  void update(const Tensor& value, const Tensor& weight);
  /// Adds a number that the host knows.
  void update(double value, double weight = 1);
  /// Returns the sum of weight * value over the sum of weights. Waits for a GPU.
  double value() const;
  void reset() { *this = {}; }
  /// Returns the sum of weights. Both weight() and sums() wait for a GPU.
  double weight() const { return sums().weight; }
  const MetricSums& sums() const;
  void restore(const MetricSums& sums) { *this = {}, sums_ = sums; }

 private:
  mutable MetricSums sums_{};
  mutable DeviceRows rows_{};  // value, weight
};

/// The weighted mean over the last `window` updates whose weight is not 0.
class WindowMean {
 public:
  /// Throws UsageError for a window below 1.
  explicit WindowMean(int64_t window);
  /// Adds a value as RunningMean::update() does.
  void update(const Tensor& value, double weight = 1);
  double value() const;
  void reset() { last_.clear(); }

 private:
  struct Weighted {
    Tensor product;  // weight * value: f64 scalar
    double weight;
  };
  int64_t window_;
  std::deque<Weighted> last_{};
};

/// The exponential of the mean loss per token, the usual metric of language models.
class Perplexity {
 public:
  /// `loss`: the mean cross-entropy, in nats, of `tokens` targets. Throws as RunningMean::update().
  void update(const Tensor& loss, double tokens) { loss_.update(loss, tokens); }
  void update(const Tensor& loss, const Tensor& tokens) { loss_.update(loss, tokens); }
  double value() const;
  void reset() { loss_.reset(); }
  MetricSums sums() const { return loss_.sums(); }
  void restore(const MetricSums& sums) { loss_.restore(sums); }

 private:
  RunningMean loss_{};
};

/// The mean of |output - target| over all elements.
class MeanAbsoluteError {
 public:
  /// Adds floating tensors of one shape on one device. Throws ShapeError or DTypeError for others.
  void update(const Tensor& outputs, const Tensor& targets);
  /// Waits for a GPU.
  double value() const { return mean_.value(); }
  void reset() { mean_.reset(); }
  MetricSums sums() const { return mean_.sums(); }
  void restore(const MetricSums& sums) { mean_.restore(sums); }

 private:
  RunningMean mean_{};
};

/// R2, the coefficient of determination: 1 - sum (target - output)^2 / sum (target - mean)^2 over
/// all elements. It is 1 for perfect outputs, 0 if all outputs are the mean of the targets, and NaN
/// if all targets are equal. A large mean costs no digits: the second sum is computed in 106 bits.
class R2Score {
 public:
  /// Takes the arguments of MeanAbsoluteError::update().
  void update(const Tensor& outputs, const Tensor& targets);
  /// Waits for a GPU.
  double value() const;
  void reset() { *this = {}; }
  const MetricSums& sums() const;
  void restore(const MetricSums& sums) { *this = {}, sums_ = sums; }

 private:
  mutable MetricSums sums_{};  // total: residuals squared
  // residuals squared, distances from the batch's mean squared, that mean, n
  mutable DeviceRows rows_{};
};

/// The share of samples whose target is among the k classes with the largest logits. Among equal
/// logits the class with the smaller number ranks first, so top-1 agrees with argmax(). Short
/// floats often have ties; counting all of them as right would make their accuracy look better. A
/// NaN ranks before all other logits, and a target whose own logit is NaN is wrong.
class TopKAccuracy {
 public:
  /// Ignores targets equal to `ignore_index`, like cross_entropy. Throws UsageError for k < 1.
  explicit TopKAccuracy(int64_t k = 1, int64_t ignore_index = -100);
  /// Adds `logits` [.., classes], floating, and `targets` [..], i64 or i32, on the same device. A
  /// target that is not a valid class counts as wrong. Throws ShapeError (also for fewer than k
  /// classes), DTypeError, DeviceError.
  void update(const Tensor& logits, const Tensor& targets);
  /// Returns a share between 0 and 1. Waits for a GPU.
  double value() const;
  void reset() { correct_ = samples_ = {}, on_host_ = {}; }
  int64_t k() const { return k_; }
  /// Waits for a GPU.
  MetricSums sums() const;
  void restore(const MetricSums& sums);

 private:
  void check(const Tensor& logits, const Tensor& targets) const;
  void update_on_device(const Tensor& logits, const Tensor& targets);

  int64_t k_, ignore_index_;
  MetricSums on_host_{};          // right samples and all samples, for batches on the CPU
  Tensor correct_{}, samples_{};  // the same for a GPU: f64 scalars
  Tensor classes_{};              // 0, 1, 2, ...: stored, because making it copies from the host
};

}  // namespace halftone::train
