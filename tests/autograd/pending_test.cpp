// Results that are computed when they are first read (core/pending.h): the same bits as at once,
// without the memory.
#include <cmath>
#include <cstring>

#include <doctest/doctest.h>

#include <halftone/autograd/ops/cast.h>
#include <halftone/core/pending.h>
#include <halftone/halftone.h>

#include "../support.h"

namespace halftone::test {
namespace {

constexpr int64_t rows = 512, columns = 520;  // more than 1 MiB in f32

bool waits(const Tensor& x) { return x.storage()->pending() != nullptr; }
bool same_bits(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.bytes() == b.bytes() &&
         std::memcmp(a.raw_data(), b.raw_data(), std::size_t(a.bytes())) == 0;
}
Tensor short_leaf(uint64_t seed) {
  manual_seed(seed);
  Tensor x = randn({rows, columns}, bf16);
  return x.set_requires_grad();
}
/// The cast to f32, at once or when it is read.
Tensor wide(const Tensor& x, bool later) { return apply(Cast{.to = f32, .later = later}, x); }

/// Returns the loss and the gradient of a function of the f32 copy of bf16 numbers.
template <class F> std::pair<Tensor, Tensor> result_of(const F& f, bool later) {
  const Tensor x = short_leaf(1), computed = x * 1.5;
  const Tensor loss = f(wide(computed, later));
  loss.backward();
  return {loss.detach(), x.grad()};
}
template <class F> void check_same_bits(const F& f) {
  const auto [loss, gradient] = result_of(f, false);
  const auto [later, its_gradient] = result_of(f, true);
  CHECK(same_bits(loss, later));
  CHECK(same_bits(gradient, its_gradient));
}

Tensor some_targets() {
  manual_seed(2);
  return randint(0, columns, {rows});
}

TEST_CASE("a cast of few bytes does not wait, one of many does until it is read") {
  CHECK_FALSE(waits(widened_later(randn({10, 10}, bf16), f32)));
  CHECK_FALSE(waits(widened_later(randn({rows, columns}, f32), bf16)));
  const Tensor x = randn({rows, columns}, bf16);
  reset_peak_memory();
  const int64_t before = memory_report().total_now;
  const Tensor y = widened_later(x, f32);
  CHECK(waits(y));
  CHECK(memory_report().total_now == before);
  CHECK(narrowest(views::transpose(y, 0, 1)).storage() == x.storage());
  CHECK(same_bits(converted(y, bf16), x));
  CHECK(waits(y));
  CHECK(same_bits(y, cast(x, f32)));
  CHECK_FALSE(waits(y));
  CHECK(memory_report().total_now == before + 4 * rows * columns);
  CHECK(narrowest(y).storage() == y.storage());
}

TEST_CASE("cross-entropy of a cast has the bits of the two operations, and no f32 copy") {
  const Tensor targets = some_targets();
  check_same_bits([&](const Tensor& logits) { return cross_entropy(logits, targets); });
  check_same_bits([&](const Tensor& logits) {
    return cross_entropy(flatten(logits, 0, -2), targets, {.label_smoothing = 0.1});
  });
  for (const bool later : {false, true}) {
    const Tensor x = short_leaf(1), computed = x * 1.5;
    reset_peak_memory();
    const int64_t before = memory_report().total_now;
    cross_entropy(wide(computed, later), targets).backward();
    const int64_t more = memory_report().total_peak - before;
    INFO(later, ", ", more, " bytes");
    CHECK((more < 5 * rows * columns) == later);
  }
}

TEST_CASE("logits with two uses: the sum of the gradients is rounded once") {
  const Tensor targets = some_targets();
  check_same_bits([&](const Tensor& logits) {
    return cross_entropy(logits, targets) + sum(logits * logits) * 1e-4;
  });
  check_same_bits([&](const Tensor& logits) {
    const Tensor squares = sum(logits * logits) * 1e-4;
    return squares + cross_entropy(logits, targets);
  });
}

TEST_CASE("norms read the short gradient before its cast") {
  for (const bool rms : {false, true}) {
    std::vector<Tensor> of_x, of_weight;
    for (const bool later : {false, true}) {
      manual_seed(3);
      Tensor x = randn({rows, columns}), weight = rand({columns});
      x.set_requires_grad(), weight.set_requires_grad();
      const Tensor y = rms ? rms_norm(x, {columns}, weight) : layer_norm(x, {columns}, weight, {});
      const Tensor dy = randn({rows, columns}, bf16);
      y.backward(later ? widened_later(dy, f32) : cast(dy, f32));
      of_x.push_back(x.grad()), of_weight.push_back(weight.grad());
    }
    CHECK(same_bits(of_x[0], of_x[1]));
    CHECK(same_bits(of_weight[0], of_weight[1]));
  }
}

TEST_CASE("a gradient that is kept does not wait") {
  const Tensor targets = some_targets();
  Tensor logits = randn({rows, columns});
  logits.set_requires_grad();
  cross_entropy(logits, targets).backward();
  CHECK_FALSE(waits(logits.grad()));
}

TEST_CASE("writing the source of a result that waits is an error when it is read") {
  const Tensor x = randn({rows, columns}, bf16);
  const Tensor y = widened_later(x, f32), read = widened_later(x, f32);
  CHECK(read.at({0, 0}) == x.at({0, 0}));
  fill_with(x, 1);
  CHECK(read.at({0, 0}) != 1);
  const std::string message =
      "[tensor] a tensor was written in place before a result that depends on it was read. Write "
      "a clone(), or set HALFTONE_PENDING=off.";
  CHECK(MESSAGE_OF(UsageError, y.at({0, 0})) == message);
  CHECK(MESSAGE_OF(UsageError, narrowest(y)) == message);
  CHECK(MESSAGE_OF(UsageError, converted(y, bf16)) == message);
}

TEST_CASE("the output of a training waits for a loss that can read it short") {
  nn::Linear model(64, columns);
  optim::Sgd sgd(model.parameters(), 0.1);
  amp::Training training = amp::apply("amp-bf16", model, sgd);
  const Tensor y = training.forward(model, randn({rows, 64}));
  CHECK(y.dtype() == f32);
  CHECK(waits(y));
  training.backward(cross_entropy(y, some_targets()));
  training.step();
  CHECK(waits(y));
  CHECK(std::isfinite(sum(y).item()));
  CHECK_FALSE(waits(y));
}

}  // namespace
}  // namespace halftone::test
