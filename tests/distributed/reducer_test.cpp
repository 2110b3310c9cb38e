// Sums of gradients, on ranks that are threads, beside the naive loop over the batches.
#include "thread_group.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include <halftone/amp/session.h>
#include <halftone/distributed/reducer.h>

#include "../amp/strategy_cases.h"
#include "../temporary_directory.h"

namespace halftone::test {
namespace {

constexpr int64_t batches = 12;
const std::vector<int64_t> sizes{1, 63, 64, 65, 1000, 0, 300};
const std::vector<DType> dtypes{f32, bf16, f16, f64, bf16, f32, f32};
constexpr std::size_t unreached = 6;  // no batch has a gradient of it

/// What batch j's backward leaves in parameter i: undefined for some.
Tensor gradient_of(int64_t batch, std::size_t i) {
  if (i == unreached || (batch + int64_t(i)) % 5 == 4) return {};
  Generator before = default_generator();
  manual_seed(uint64_t(100 * batch) + i);
  Tensor gradient = cast(randn({sizes[i]}), dtypes[i]);
  default_generator() = before;
  if (i == 4) {  // what must come through
    const float special[] = {-0.0F, INFINITY, NAN, 1e-40F};
    Tensor wide = cast(gradient, f32).clone();
    for (int k = 0; k < 4; ++k) wide.data<float>()[10 * k + batch % 3] = special[k];
    gradient = cast(wide, dtypes[i]);
  }
  return gradient;
}

/// ((c_0 + c_1) + c_2) + ..., in f32 or f64.
Tensor naive_sum(std::size_t i, int64_t first, int64_t behind, std::optional<DType> wire) {
  Tensor sum;
  for (int64_t j = first; j < behind; ++j) {
    Tensor c = gradient_of(j, i);
    if (!c.defined()) continue;
    if (wire && dtypes[i] != f64) c = cast(c, *wire);
    c = cast(c, dtypes[i] == f64 ? f64 : f32);
    sum = sum.defined() ? sum + c : c;
  }
  return sum;
}

/// The gradients after the steps' batches 0 to `behind`, on each rank.
std::vector<std::vector<Tensor>> reduced(int ranks, int64_t behind,
                                         const distributed::Options& options) {
  std::vector<std::vector<Tensor>> all(std::size_t(ranks), std::vector<Tensor>{});
  on_ranks(ranks, [&](ThreadRank& self) {
    std::vector<Tensor> parameters;
    for (std::size_t i = 0; i < sizes.size(); ++i)
      parameters.push_back(zeros({sizes[i]}, dtypes[i]).set_requires_grad());
    distributed::Reducer reducer(self, parameters, options);
    for (int repeat = 0; repeat < 2; ++repeat) {  // a step leaves nothing to the next
      for (int64_t round = 0; round < behind; round += ranks) {
        const int64_t batch = round + self.rank();
        for (std::size_t i = 0; batch < behind && i < sizes.size(); ++i)
          parameters[i].set_grad(gradient_of(batch, i));
        reducer.add_batches(batch < behind);
      }
      for (Tensor& x : parameters) CHECK(!x.grad().defined());
      reducer.finish();
    }
    for (Tensor& x : parameters) all[std::size_t(self.rank())].push_back(x.grad());
  });
  return all;
}

bool same_or_both_nan(const Tensor& a, const Tensor& b) {
  const auto x = a.to_vector<double>(), y = b.to_vector<double>();
  for (std::size_t k = 0; k < x.size(); ++k)
    if (!(std::isnan(x[k]) && std::isnan(y[k])) &&
        (x[k] != y[k] || std::signbit(x[k]) != std::signbit(y[k])))
      return false;
  return a.dtype() == b.dtype() && a.shape() == b.shape();
}

void check_sums(const distributed::Options& options) {
  for (const int64_t behind : {int64_t(1), int64_t(7), batches})
    for (const int ranks : {1, 2, 3, 4}) {
      CAPTURE(ranks);
      CAPTURE(behind);
      for (const std::vector<Tensor>& gradients : reduced(ranks, behind, options))
        for (std::size_t i = 0; i < sizes.size(); ++i) {
          CAPTURE(i);
          const Tensor expected = naive_sum(i, 0, behind, options.wire);
          REQUIRE(gradients[i].defined() == expected.defined());
          if (expected.defined()) CHECK(same_or_both_nan(gradients[i], expected));
        }
    }
}

TEST_CASE("Reducer: the naive sum in the order of the batches, on any number of ranks") {
  check_sums({});
  check_sums({.bucket_bytes = 1});
}

TEST_CASE("Reducer: a short wire rounds each batch's gradient once") {
  check_sums({.wire = bf16});
  check_sums({.wire = f16});
  CHECK(!same_or_both_nan(naive_sum(0, 0, batches, bf16), naive_sum(0, 0, batches, f16)));
}

TEST_CASE("Reducer: each rank sends what others own, and what it owns to the others") {
  // 128 f32 elements on two ranks: 64 of a gradient, then 64 sums; a byte says who has gradients.
  on_ranks(2, [](ThreadRank& self) {
    Tensor x = zeros({128}).set_requires_grad();
    distributed::Reducer reducer(self, {x}, {.wire = bf16});
    x.set_grad(ones({128}));
    reducer.add_batches(true);
    CHECK(self.traffic().sent_of(TrafficUse::gradient) == 64 * 2);
    reducer.finish();
    CHECK(self.traffic().sent_of(TrafficUse::gradient) == 64 * 2 + 64 * 4);
    CHECK(self.traffic().sent_of(TrafficUse::control) == 1);
    CHECK(x.grad().to_vector<double>() == std::vector<double>(128, 2.0));
  });
}

TEST_CASE("Reducer: what cannot be meant") {
  ThreadRank::Post post;
  ThreadRank alone(post, 0, 1);
  CHECK(message_of<UsageError>([&] { distributed::Reducer(alone, {}, {.wire = f8_e4m3}); }) ==
        "[distributed] the wire is f8_e4m3. Use f32, bf16, f16, or nothing for the gradients' own "
        "dtype.");
  CHECK(message_of<UsageError>([&] { distributed::Reducer(alone, {}, {.bucket_bytes = 0}); }) ==
        "[distributed] bucket_bytes is 0. Use 1 or more.");
}

// --- whole trainings by hand

struct Net {
  nn::Sequential model;
  optim::AdamW adamw;
  explicit Net(uint64_t seed) : model(network(seed)), adamw(model.parameters(), {.lr = 1e-2}) {}
  static nn::Sequential network(uint64_t seed) {
    manual_seed(seed);
    return nn::Sequential(nn::Linear(12, 20), nn::BatchNorm1d(20), nn::Gelu(), nn::Dropout(0.2),
                          nn::Linear(20, 4));
  }
};

/// Three steps of 6 batches; rank 0's weights and seed count. The state of every rank at the end.
std::vector<optim::NamedTensors> trained(const std::string& strategy, int ranks) {
  manual_seed(77);
  const Tensor inputs = randn({18 * 5, 12}), labels = randint(0, 4, {18 * 5});
  std::vector<optim::NamedTensors> states(std::size_t(ranks), optim::NamedTensors{});
  on_ranks(ranks, [&](ThreadRank& self) {
    Net net(uint64_t(self.rank()));
    amp::Training training(amp::Strategy::named(strategy), net.model, net.adamw);
    training.train_together(self);
    for (int64_t step = 0; step < 3; ++step) {
      training.zero_grad();
      for (int64_t round = 0; round < 6; round += self.size()) {
        const int64_t batch = round + self.rank();
        amp::Training::begin_batch(6 * step + batch);
        if (batch >= 6) {
          training.no_backward();
          continue;
        }
        const int64_t at = (6 * step + batch) * 5;
        const Tensor outputs = training.forward(net.model, views::slice(inputs, 0, at, 5));
        training.backward(cross_entropy(outputs, views::slice(labels, 0, at, 5)) * (1.0 / 6));
      }
      training.clip_grad_norm(0.5);
      training.step();
    }
    amp::Training::begin_batch(18);
    states[std::size_t(self.rank())] = copy_of(training.state_dict());
  });
  return states;
}

TEST_CASE("train_together: the bits of one rank on 2, 3 and 4, under every strategy") {
  for (const std::string_view name : amp::Strategy::names()) {
    CAPTURE(name);
    const optim::NamedTensors alone = trained(std::string(name), 1)[0];
    for (const int ranks : {2, 3, 4}) {
      CAPTURE(ranks);
      for (const optim::NamedTensors& state : trained(std::string(name), ranks))
        CHECK(same_state(state, alone));
    }
  }
}

TEST_CASE("train_together: calls out of order") {
  on_ranks(1, [](ThreadRank& self) {
    Net net(1);
    amp::Training training(amp::Strategy::named("fp32"), net.model, net.adamw);
    CHECK(message_of<UsageError>([&] { training.no_backward(); }) ==
          "[Training.no_backward] this training is not part of a group. Call train_together() "
          "first, or leave it out.");
    training.train_together(self);
    CHECK(message_of<UsageError>([&] { training.train_together(self); }) ==
          "[Training.train_together] called twice. Call it once, before the first step.");
    const auto loss = [&] {
      return cross_entropy(training.forward(net.model, ones({2, 12})), zeros({2}, i64));
    };
    training.backward(loss());
    training.step();
    CHECK(message_of<UsageError>([&] { training.backward(loss()); }) ==
          "[Training.backward] the gradients of the last step are still there. Call zero_grad() "
          "before the first backward() of a step.");
    CHECK(message_of<UsageError>([&] { amp::Training::begin_batch(-1); }) ==
          "[Training.begin_batch] the batch has number -1. Count the batches of a training from 0, "
          "up to 1073741822.");
  });
}

TEST_CASE("train_together: a loss scale that moves between two batches of a step") {
  on_ranks(1, [](ThreadRank& self) {
    Net net(1);
    amp::Training training(amp::Strategy::named("amp-fp16"), net.model, net.adamw);
    training.train_together(self);
    const auto loss = [&] {
      return cross_entropy(training.forward(net.model, ones({2, 12})), zeros({2}, i64));
    };
    training.backward(loss());
    training.scaler().update(1024);
    CHECK(message_of<UsageError>([&] { training.backward(loss()); }) ==
          "[Training.backward] the loss scale moved between two batches of a step, whose gradients "
          "are summed up already. Update the scaler between steps.");
  });
}

/// A session that wants nothing.
struct NoSession final : amp::Session {
  uint64_t begin_pass() override { return 0; }
  Decision decide(const OpInfo&, std::span<const Tensor>, uint64_t) override { return {}; }
  std::shared_ptr<OpTap> tap(std::span<const Tensor>, std::span<const Tensor>, uint64_t) override {
    return nullptr;
  }
  void before_step() override {}
  void end_step(optim::Optimizer&, const Tensor&) override {}
  NamedTensors state_dict() const override { return {}; }
  void load_state_dict(const NamedTensors&) override {}
};

TEST_CASE("train_together: policy files are refused on several ranks") {
  amp::Strategy strategy = amp::Strategy::named("fp32");
  strategy.session = [](nn::Module&) { return std::make_shared<NoSession>(); };
  on_ranks(2, [&](ThreadRank& self) {
    Net net(1);
    amp::Training training(strategy, net.model, net.adamw);
    CHECK(message_of<UnsupportedError>([&] { training.train_together(self); }) ==
          "[distributed] policy files measure the tensors of one process, so their scales would "
          "part. Start one process, or use a strategy.");
  });
}

TEST_CASE("train_together: other models are refused on every rank") {
  on_ranks(2, [](ThreadRank& self) {
    nn::Sequential model(nn::Linear(4, self.rank() == 1 ? 3 : 2));
    optim::Sgd sgd(model.parameters(), {.lr = 0.1});
    amp::Training training(amp::Strategy::named("fp32"), model, sgd);
    CHECK(message_of<UsageError>([&] { training.train_together(self); }) ==
          "[distributed] rank 1 has parameter 0.weight [3, 4] f32, rank 0 has parameter 0.weight "
          "[2, 4] f32. Start all ranks alike.");
  });
}

TEST_CASE("train_together: batch norm that counts its batches is refused") {
  on_ranks(1, [](ThreadRank& self) {
    nn::Sequential model(nn::Linear(4, 3), nn::BatchNorm1d(3, {.momentum = std::nullopt}));
    optim::Sgd sgd(model.parameters(), {.lr = 0.1});
    amp::Training training(amp::Strategy::named("fp32"), model, sgd);
    training.train_together(self);
    CHECK(message_of<UsageError>([&] {
            training.forward(model, ones({5, 4}));
          }).starts_with("[batch_norm] without momentum a batch's weight is"));
  });
}

}  // namespace
}  // namespace halftone::test
