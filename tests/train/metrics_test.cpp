// Metrics against naive computations in double, on the CPU and, if there is one, on a GPU.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include <halftone/halftone.h>

#include "device/device_cases.h"
#include "support.h"

namespace halftone::train {
namespace {

using test::contains;
using test::message_of;

/// Counts the rows whose target has fewer than k classes ahead of it: the definition, row by row.
double naive_top_k(const Tensor& logits, const Tensor& targets, int64_t k, double& counted) {
  const auto x = logits.to_vector<double>();
  const auto t = targets.to_vector<int64_t>();
  const int64_t classes = logits.size(-1);
  double correct = 0;
  for (std::size_t row = 0; row < t.size(); ++row) {
    if (t[row] == -100) continue;
    counted += 1;
    const double* const begin = x.data() + int64_t(row) * classes;
    const double own = begin[t[row]];
    int64_t ahead = 0;
    for (int64_t c = 0; c < classes; ++c)
      ahead += begin[c] > own || std::isnan(begin[c]) || (begin[c] == own && c < t[row]);
    correct += !std::isnan(own) && ahead < k;
  }
  return correct;
}

void check_accuracy(Device device, DType dtype) {
  manual_seed(3);
  for (const int64_t k : {1, 2, 5, 10}) {
    TopKAccuracy metric(k);
    double correct = 0, counted = 0;
    for (const Shape& shape : {Shape{7, 10}, Shape{2, 3, 10}, Shape{64, 10}, Shape{10}}) {
      // Few distinct values: many ties.
      const Tensor logits = cast(cast(randn(shape) * 2.0, i64), dtype);
      Shape rows = shape;
      rows.erase(rows.rank() - 1);
      const Tensor draws = randint(-1, 10, rows);
      const Tensor targets =
          cast(where(less(draws, scalar(0, i64)), scalar(-100, f64), cast(draws, f64)), i64);
      correct += naive_top_k(logits, targets, k, counted);
      metric.update(logits.to(device), targets.to(device));
    }
    INFO("k ", k, ", ", facts(dtype).name);
    CHECK(counted > 60);
    CHECK(metric.value() == correct / counted);
    if (k > 1 && k < 10) CHECK((metric.value() > 0.2 && metric.value() < 1));
  }
}

TEST_CASE("top-k accuracy is the naive count, ties and ignored targets included") {
  for (const DType dtype : {f32, f64, bf16, f16}) check_accuracy(Device::cpu(), dtype);
}

TEST_CASE("top-1 accuracy is that of argmax, ties included") {
  manual_seed(4);
  const Tensor logits = cast(cast(randn({500, 6}), i64), bf16), targets = randint(0, 6, {500});
  TopKAccuracy metric;
  metric.update(logits, targets);
  CHECK(metric.value() == sum(cast(equal(argmax(logits, -1), targets), f64)).item() / 500);
}

TEST_CASE("metrics on a GPU are those of the CPU") {
  const auto gpu = test::gpu_or_skip();
  if (!gpu) return;
  for (const DType dtype : {f32, bf16}) check_accuracy(*gpu, dtype);
  RunningMean mean;
  WindowMean window(2);
  for (const double value : {1.0, 2.0, 4.0}) {
    mean.update(scalar(value, f32, *gpu), 2 * value);
    window.update(scalar(value, f32, *gpu));
  }
  CHECK(mean.value() == 42.0 / 14);
  CHECK(window.value() == 3);
}

/// Means of batches whose sizes only their device knows, one of them empty; resumed after three.
void check_tensor_weights(Device device) {
  RunningMean whole, resumed;
  double total = 0, weight = 0;
  for (int i = 0; i < 6; ++i) {
    const double count = i == 2 ? 0 : i + 1, value = i == 2 ? std::nan("") : 0.1 * i;
    if (i == 3) resumed.restore(whole.sums());
    for (RunningMean* mean : {&whole, &resumed})
      if (mean == &whole || i >= 3)
        mean->update(scalar(value, f64, device), scalar(count, f64, device));
    if (i != 2) total += count * value, weight += count;
  }
  CHECK(whole.value() == total / weight);
  CHECK(resumed.value() == whole.value());
  CHECK(resumed.weight() == weight);
}

TEST_CASE("sums of metrics depend neither on the order of batches nor on their distribution") {
  manual_seed(5);
  const auto batch = [] {
    const Tensor t = randn({7}) * 3e3 + 1e6;
    return std::pair{t, t + randn({7})};
  };
  std::vector<std::pair<Tensor, Tensor>> batches;
  for (int i = 0; i < 200; ++i) batches.push_back(batch());
  const auto measured = [&batches](std::size_t ranks, bool backwards) {
    MetricSums mean, r2;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      RunningMean own_mean;
      train::R2Score own_r2;
      for (std::size_t i = rank; i < batches.size(); i += ranks) {
        const auto& [t, y] = batches[backwards ? batches.size() - 1 - i : i];
        own_mean.update(halftone::mean(halftone::abs(y - t)) * 1e-3, 7);
        own_r2.update(y, t);
      }
      mean += own_mean.sums(), r2 += own_r2.sums();
    }
    RunningMean all_mean;
    train::R2Score all_r2;
    all_mean.restore(mean), all_r2.restore(r2);
    return std::pair{all_mean.value(), all_r2.value()};
  };
  const auto alone = measured(1, false);
  CHECK(alone.second > 0.999999);
  CHECK(alone.second < 1);
  for (const std::size_t ranks : {1U, 2U, 3U, 4U, 7U})
    for (const bool backwards : {false, true}) CHECK(measured(ranks, backwards) == alone);
}

TEST_CASE("batches of a metric may come from several devices") {
  const auto gpu = test::gpu_or_skip();
  if (!gpu) return;
  R2Score mixed, alone;
  RunningMean mean;
  for (const Device device : {Device::cpu(), *gpu, Device::cpu()}) {
    const Tensor y = from({1.0, 2, 4}), t = from({1.5, 2, 3});
    mixed.update(y.to(device), t.to(device)), alone.update(y, t);
    mean.update(scalar(2, f32, device), 3);
  }
  CHECK(mixed.value() == alone.value());
  CHECK(mean.value() == 2);
}

TEST_CASE("R2 of equal targets is NaN; infinite losses stay infinite") {
  train::R2Score r2;
  for (int i = 1; i < 30; ++i) r2.update(ones({i}), full({i}, 0.1));
  CHECK(std::isnan(r2.value()));
  RunningMean mean;
  mean.update(1.0), mean.update(INFINITY), mean.update(2.0);
  CHECK(mean.value() == INFINITY);
}

TEST_CASE("means with weights that are tensors, restored in the middle") {
  check_tensor_weights(Device::cpu());
  if (const auto gpu = test::gpu_or_skip()) check_tensor_weights(*gpu);
  RunningMean mean;
  CHECK(message_of<ShapeError>([&] { mean.update(scalar(1), ones({2}, f64)); }) ==
        "[RunningMean] the weight is [2] f64. Pass an f64 scalar, the number of samples.");
}

TEST_CASE("updates do not wait for a GPU, values do") {
  const auto gpu = test::gpu_or_skip();
  if (!gpu) return;
  const Backend& backend = backend_for(*gpu);
  RunningMean mean;
  WindowMean window(3);
  Perplexity perplexity;
  TopKAccuracy accuracy(2);
  const auto update = [&] {
    const Tensor logits = randn({8, 10}, f32, *gpu), targets = randint(0, 10, {8}, i64, *gpu);
    const Tensor loss = cross_entropy(logits, targets);
    mean.update(loss, 8), window.update(loss), perplexity.update(loss, 8);
    accuracy.update(logits, targets);
  };
  update();  // the first update makes the class numbers
  const int64_t before = backend.waits();
  for (int i = 0; i < 10; ++i) update();
  CHECK(backend.waits() == before);
  CHECK(std::exp(mean.value()) == perplexity.value());
  CHECK(backend.waits() == before + 2);
  CHECK((window.value() > 0 && accuracy.value() >= 0));
}

TEST_CASE("top-k accuracy: a NaN is never right, and neither is a target that is not a class") {
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  const auto top = [](int64_t k, std::initializer_list<double> logits, int64_t target) {
    TopKAccuracy metric(k);
    metric.update(from(logits), scalar(double(target), i64));
    return metric.value();
  };
  CHECK(top(1, {nan, 1, 2}, 0) == 0);
  CHECK(top(3, {nan, 1, 2}, 0) == 0);
  CHECK(top(1, {nan, 1, 2}, 2) == 0);
  CHECK(top(2, {nan, 1, 2}, 2) == 1);
  CHECK(top(1, {1, inf, -inf}, 1) == 1);
  CHECK(top(3, {1, inf, -inf}, 2) == 1);
  CHECK(top(2, {1, inf, -inf}, 2) == 0);
  CHECK(top(1, {2, 2, 2}, 0) == 1);
  CHECK(top(1, {2, 2, 2}, 2) == 0);
  CHECK(top(3, {1, 2, 3}, 3) == 0);
  CHECK(top(3, {1, 2, 3}, -1) == 0);
  CHECK(std::isnan(top(1, {1, 2}, -100)));
}

TEST_CASE("means weigh by samples, sum in f64, and begin again after reset()") {
  RunningMean mean;
  CHECK(std::isnan(mean.value()));
  mean.update(scalar(1, bf16), 3);
  mean.update(from({4.0}), 1);
  mean.update(2.0, 4);
  mean.update(std::nan(""), 0);  // of no samples
  mean.update(scalar(std::nan("")), 0);
  CHECK(mean.value() == 15.0 / 8);
  CHECK(mean.weight() == 8);
  mean.reset();
  CHECK(std::isnan(mean.value()));
  // 1e5 losses of 0.1: an f32 sum would be off by 1e-5 or more.
  const Tensor loss = scalar(0.1);
  for (int i = 0; i < 100000; ++i) mean.update(loss, 32);
  CHECK(mean.value() == doctest::Approx(double(0.1f)).epsilon(1e-12));
}

TEST_CASE("a metric has its own numbers, records nothing and ignores policies") {
  Tensor loss = from({0.1}).set_requires_grad();
  RunningMean mean;
  WindowMean window(3);
  TopKAccuracy accuracy;
  amp::autocast(bf16, [&] {
    mean.update(loss), window.update(loss);
    accuracy.update(from({{1.0, 1.001}}), cast(from({0.0}), i64));  // equal in bf16
    return 0;
  });
  loss.data<float>()[0] = 9;  // as a captured step does with its loss
  CHECK(mean.value() == double(0.1f));
  CHECK(window.value() == double(0.1f));
  CHECK(accuracy.value() == 0);
}

TEST_CASE("a window drops old values") {
  WindowMean window(3);
  CHECK(std::isnan(window.value()));
  const double values[] = {5, 1, 7, 2, 4}, weights[] = {1, 2, 3, 4, 5};
  for (int i = 0; i < 5; ++i) {
    window.update(scalar(values[i]), weights[i]);
    double sum = 0, weight = 0;
    for (int j = std::max(0, i - 2); j <= i; ++j)
      sum += values[j] * weights[j], weight += weights[j];
    CHECK(window.value() == doctest::Approx(sum / weight).epsilon(1e-15));
  }
  window.reset();
  CHECK(std::isnan(window.value()));
}

TEST_CASE("perplexity of equal probabilities is the number of classes, over batches of any size") {
  Perplexity perplexity;
  for (const int64_t rows : {3, 8}) {
    const Tensor logits = zeros({rows, 50});
    perplexity.update(cross_entropy(logits, randint(0, 50, {rows})), double(rows));
  }
  CHECK(perplexity.value() == doctest::Approx(50).epsilon(1e-6));
}

TEST_CASE("metrics refuse inputs that they cannot count") {
  TopKAccuracy top5(5);
  const auto update = [&](const Tensor& logits, const Tensor& targets) {
    return [=, &top5] { top5.update(logits, targets); };
  };
  const Tensor targets = randint(0, 4, {3});
  CHECK(contains(message_of<ShapeError>(update(zeros({3, 4}), targets)), "only 4 classes"));
  CHECK(contains(message_of<ShapeError>(update(zeros({2, 9}), targets)), "do not fit"));
  CHECK(contains(message_of<DTypeError>(update(zeros({3, 9}), zeros({3}))), "i64"));
  CHECK(contains(message_of<UsageError>(update({}, targets)), "undefined"));
  CHECK(contains(message_of<UsageError>([] { TopKAccuracy{0}; }), "k is 0"));
  CHECK(contains(message_of<UsageError>([] { WindowMean{0}; }), "window is 0"));
  RunningMean mean;
  CHECK(contains(message_of<ShapeError>([&] { mean.update(zeros({2})); }), "one number"));
  CHECK(contains(message_of<DTypeError>([&] { mean.update(scalar(1, i64)); }), "i64"));
  CHECK(contains(message_of<UsageError>([&] { mean.update(scalar(1), -1); }), "weight is -1"));
  CHECK(std::isnan(mean.value()));
}

}  // namespace
}  // namespace halftone::train
