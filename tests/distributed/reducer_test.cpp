// Sums of gradients, on ranks that are threads, compared with the naive loop over the batches.
#include <algorithm>
#include <cmath>
#include <limits>

#include <doctest/doctest.h>

#include <halftone/distributed/reducer.h>
#include <halftone/halftone.h>

#include "../amp/cases.h"
#include "../support.h"
#include "thread_group.h"

namespace halftone::test::reducer_test {
namespace {

constexpr int64_t batches = 12;
const std::vector<int64_t> sizes{1, 63, 1024, 1025, 1000, 0, 300, 5000};
const std::vector<DType> dtypes{f32, bf16, f16, f64, bf16, f32, f32, bf16};
constexpr std::size_t unreached = 6;  // no batch has a gradient for it

/// Returns the gradient of batch j for parameter i: undefined for some.
Tensor gradient_of(int64_t batch, std::size_t i) {
  if (i == unreached || (batch + int64_t(i)) % 5 == 4) return {};
  Generator before = default_generator();
  manual_seed(uint64_t(100 * batch) + i);
  Tensor gradient = cast(randn({sizes[i]}), dtypes[i]);
  default_generator() = before;
  if (i == 4) {  // infinity and NaN must pass
    const float special[] = {-0.0F, INFINITY, NAN, 1e-40F};
    Tensor wide = cast(gradient, f32).clone();
    for (int k = 0; k < 4; ++k) wide.data<float>()[10 * k + batch % 3] = special[k];
    gradient = cast(wide, dtypes[i]);
  }
  return gradient;
}

distributed::WireFormat wire_named(std::string_view name) {
  return distributed::WireFormat::named(name);
}

/// Returns the key of the wire's random numbers for a parameter in batch j.
RandomKey key_of(int64_t batch, std::size_t i) {
  RandomKey key{11, uint64_t(batch) << 34};
  for (std::size_t before = 0; before < i; ++before) key.offset += uint64_t(sizes[before] + 3) / 4;
  return key;
}

/// ((c_0 + c_1) + c_2) + ..., in f32 or f64.
Tensor naive_sum(std::size_t i, int64_t behind, std::string_view wire) {
  Tensor sum;
  for (int64_t j = 0; j < behind; ++j) {
    Tensor c = gradient_of(j, i);
    if (!c.defined()) continue;
    if (wire == "bf16" && dtypes[i] != f64) c = cast(c, bf16);
    else if (wire != "own") c = from_wire(to_wire(c, wire_named(wire), key_of(j, i)));
    c = cast(c, dtypes[i] == f64 ? f64 : f32);
    sum = sum.defined() ? sum + c : c;
  }
  return sum;
}

/// Returns the gradients after batches 0 to `behind` of the steps, on each rank; only its shards if
/// parameters are sharded.
std::vector<std::vector<Tensor>> reduced(int ranks, int64_t behind,
                                         const distributed::Options& options) {
  std::vector<std::vector<Tensor>> all(std::size_t(ranks), std::vector<Tensor>{});
  on_ranks(ranks, [&](ThreadRank& self) {
    std::vector<Tensor> parameters;
    for (std::size_t i = 0; i < sizes.size(); ++i)
      parameters.push_back(zeros({sizes[i]}, dtypes[i]).set_requires_grad());
    distributed::Reducer reducer(self, parameters, options);
    for (int repeat = 0; repeat < 2; ++repeat) {  // a step must not affect the next one
      for (int64_t round = 0; round < behind; round += ranks) {
        const int64_t batch = round + self.rank();
        for (std::size_t i = 0; batch < behind && i < sizes.size(); ++i)
          parameters[i].set_grad(gradient_of(batch, i));
        reducer.begin_batch(key_of(batch, 0), 1);
        reducer.add_batches(batch < behind);
      }
      for (Tensor& x : parameters) CHECK(!x.grad().defined());
      reducer.finish();
    }
    const std::vector<Tensor>& given = reducer.parts().empty() ? parameters : reducer.parts();
    CHECK(reducer.parts().empty() == !(options.shard_optimizer && ranks > 1));
    for (const Tensor& x : given) all[std::size_t(self.rank())].push_back(x.grad());
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

void check_sums(std::string_view wire, distributed::Options options = {}) {
  options.wire = wire_named(wire);
  for (const int64_t behind : {int64_t(1), int64_t(7), batches})
    for (const int ranks : {1, 2, 3, 4}) {
      CAPTURE(ranks);
      CAPTURE(behind);
      const auto of_ranks = reduced(ranks, behind, options);
      const distributed::Shards shards(sizes, ranks);
      for (int rank = 0; rank < ranks; ++rank)
        for (std::size_t i = 0; i < sizes.size(); ++i) {
          CAPTURE(i);
          const Tensor& gradient = of_ranks[std::size_t(rank)][i];
          Tensor expected = naive_sum(i, behind, wire);
          REQUIRE(gradient.defined() == expected.defined());
          if (!expected.defined()) continue;
          if (options.shard_optimizer && ranks > 1)
            expected = distributed::part_of(expected, shards.range(i, rank));
          CHECK(same_or_both_nan(gradient, expected));
        }
    }
}

TEST_CASE("Reducer: the naive sum in the order of the batches, on any number of ranks") {
  check_sums("own");
  check_sums("own", {.bucket_bytes = 1});
  check_sums("own", {.shard_optimizer = false});
}

TEST_CASE("Reducer: a short wire rounds each batch's gradient once") {
  for (const char* wire : {"bf16", "bf16-sr", "f16", "f8_e4m3", "f8_e5m2-sr"}) {
    CAPTURE(wire);
    check_sums(wire);
    CHECK(!same_or_both_nan(naive_sum(0, batches, wire), naive_sum(0, batches, "own")));
  }
}

TEST_CASE("Reducer: error feedback is kept by batch of a step, on any number of ranks") {
  const auto sums = [](int ranks) {
    std::vector<Tensor> all;
    on_ranks(ranks, [&](ThreadRank& self) {
      Tensor x = zeros({3000}).set_requires_grad();
      distributed::Reducer reducer(
          self, {x}, {.wire = wire_named("f8_e4m3+feedback"), .shard_optimizer = false});
      for (int64_t step = 0; step < 4; ++step) {
        const int64_t behind = step == 1 ? 3 : 4;  // one step has a batch less
        for (int64_t round = 0; round < behind; round += ranks) {
          const int64_t batch = round + self.rank();
          if (batch < behind) x.set_grad(full({3000}, 0.3 + double(batch) / 7));
          reducer.begin_batch({}, step < 2 ? 1 : 4);  // the loss scale changes
          reducer.add_batches(batch < behind);
        }
        reducer.finish();
        if (self.rank() == 0) all.push_back(x.grad());
        x.set_grad({});
      }
    });
    return all;
  };
  const std::vector<Tensor> alone = sums(1);
  CHECK(!same_or_both_nan(alone[0], alone[2]));  // the stored error has an effect
  for (const int ranks : {2, 3, 4}) {
    CAPTURE(ranks);
    const std::vector<Tensor> others = sums(ranks);
    for (std::size_t step = 0; step < 4; ++step) CHECK(same_or_both_nan(others[step], alone[step]));
  }
}

TEST_CASE("Reducer: each rank sends the parts that others own, and its own part to the others") {
  // 4096 f32 elements on two ranks: half of a gradient, then half of the sums, or of the updated
  // parameter. One byte says which ranks have gradients.
  for (const bool shards : {false, true})
    on_ranks(2, [&](ThreadRank& self) {
      Tensor x = zeros({4096}).set_requires_grad();
      distributed::Reducer reducer(self, {x},
                                   {.wire = wire_named("bf16"), .shard_optimizer = shards});
      x.set_grad(ones({4096}));
      reducer.add_batches(true);
      CHECK(self.traffic().sent_of(TrafficUse::gradient) == 2048 * 2);
      reducer.finish();
      CHECK(self.traffic().sent_of(TrafficUse::gradient) == 2048 * 2 + (shards ? 0 : 2048 * 4));
      CHECK(self.traffic().sent_of(TrafficUse::control) == 1);
      if (shards) {
        const Tensor& part = reducer.parts()[0];
        CHECK(part.grad().to_vector<double>() == std::vector<double>(2048, 2.0));
        CHECK(!x.grad().defined());
        const uint64_t version = x.storage()->version();
        fill_with(part, 10 + self.rank());
        reducer.gather_parameters();
        CHECK(self.traffic().sent_of(TrafficUse::parameter) == 2048 * 4);
        CHECK(x.storage()->version() > version + 1);
        reducer.gather_parameters();  // once for each update
        CHECK(self.traffic().sent_of(TrafficUse::parameter) == 2048 * 4);
        for (int64_t i = 0; i < 4096; ++i) REQUIRE(x.data<float>()[i] == (i < 2048 ? 10 : 11));
      } else {
        CHECK(x.grad().to_vector<double>() == std::vector<double>(4096, 2.0));
      }
    });
}

TEST_CASE("Reducer: parameters that are not row-major are not sharded") {
  on_ranks(2, [](ThreadRank& self) {
    const std::vector<Tensor> parameters{views::transpose(zeros({2, 3}), 0, 1)};
    CHECK(MESSAGE_OF(UsageError, distributed::Reducer(self, parameters, {})) ==
          "[distributed] a parameter is [3, 2] f32, and not row-major. Make it contiguous, or turn "
          "shard_optimizer off.");
    const distributed::Reducer whole(self, parameters, {.shard_optimizer = false});
    CHECK(whole.parts().empty());
  });
}

TEST_CASE("Reducer: f8 sends a byte for each element, and a scale for each piece of 1024") {
  on_ranks(2, [](ThreadRank& self) {
    Tensor x = zeros({2112}).set_requires_grad();
    const distributed::Options options{.wire = wire_named("f8_e4m3"), .shard_optimizer = false};
    distributed::Reducer reducer(self, {x}, options);
    x.set_grad(ones({2112}));
    reducer.add_batches(true);
    const int64_t theirs = reducer.shards().range(0, 1 - self.rank()).count,
                  pieces = reducer.shards().cuts(0, 1 - self.rank());
    CHECK((theirs > 0 && pieces > 0));
    CHECK(self.traffic().sent_of(TrafficUse::gradient) == theirs + 4 * pieces);
    reducer.finish();
    CHECK(x.grad().to_vector<double>() == std::vector<double>(2112, 2.0));
  });
}

TEST_CASE("Reducer: contradictory settings") {
  ThreadRank::Post post;
  ThreadRank alone(post, 0, 1);
  const distributed::Options whole_numbers{.wire = distributed::WireFormat{.dtype = i32}};
  CHECK(MESSAGE_OF(UsageError, distributed::Reducer(alone, {}, whole_numbers))
            .starts_with("[distributed] there is no wire format named \"i32\". "));
  CHECK(MESSAGE_OF(UsageError, distributed::Reducer(alone, {}, {.bucket_bytes = 0})) ==
        "[distributed] bucket_bytes is 0. Use 1 or more.");
}

// --- whole trainings by hand

struct Net {
  nn::Sequential model;
  optim::AdamW adamw;
  explicit Net(uint64_t seed, int64_t outputs = 4)
      : model(network(seed, outputs)), adamw(model.parameters(), {.lr = 1e-2}) {}
  static nn::Sequential network(uint64_t seed, int64_t outputs) {
    manual_seed(seed);
    return nn::Sequential(nn::Linear(12, 200), nn::BatchNorm1d(200), nn::Gelu(), nn::Dropout(0.2),
                          nn::Linear(200, outputs));
  }
};

/// Does three steps of 6 batches; rank 0's weights and seed are used. Returns the state of rank 0
/// at the end, and the other ranks' models.
std::vector<optim::NamedTensors> trained(const amp::Policy& strategy, int ranks,
                                         const distributed::Options& options, int64_t outputs = 4) {
  manual_seed(77);
  const Tensor inputs = randn({18 * 5, 12}), labels = randint(0, 4, {18 * 5});
  std::vector<optim::NamedTensors> states(std::size_t(ranks), optim::NamedTensors{});
  on_ranks(ranks, [&](ThreadRank& self) {
    Net net(uint64_t(self.rank()), outputs);
    amp::Training training(strategy, net.model, net.adamw);
    training.train_together(self, options);
    for (int64_t step = 0; step < 3; ++step) {
      training.zero_grad();
      for (int64_t round = 0; round < 6; round += self.size()) {
        const int64_t batch = round + self.rank();
        training.begin_batch(6 * step + batch);
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
    training.begin_batch(18);
    optim::NamedTensors& state = states[std::size_t(self.rank())];
    state = copy_of(training.state_dict());
    CHECK(state.empty() == (self.rank() != 0));
    if (self.rank() != 0)
      for (const auto& [name, x] : nn::state_dict(net.model)) state["model." + name] = x.clone();
  });
  return states;
}

void check_bits(const amp::Policy& strategy, const distributed::Options& options = {}) {
  const std::vector<optim::NamedTensors> alone = trained(strategy, 1, options);
  optim::NamedTensors model = alone[0];
  std::erase_if(model, [](const auto& entry) { return !entry.first.starts_with("model."); });
  for (const int ranks : {2, 3, 4}) {
    CAPTURE(ranks);
    const std::vector<optim::NamedTensors> states = trained(strategy, ranks, options);
    for (std::size_t rank = 0; rank < states.size(); ++rank)
      CHECK(same_state(states[rank], rank == 0 ? alone[0] : model));
  }
}

TEST_CASE("train_together: the bits of one rank on 2, 3 and 4, under every strategy") {
  for (const std::string_view name : amp::Policy::names()) {
    CAPTURE(name);
    check_bits(amp::Policy::named(name));
  }
}

TEST_CASE("train_together: states in 8 and 4 bits, cut at blocks") {
  amp::Policy coded = amp::Policy::named("split-bf16");
  coded.state_dtype = CodedForm::dynamic8;
  coded.states = {{"exp_avg_sq", CodedForm::dynamic4}};
  for (const bool masters : {false, true}) {
    if (masters) coded = amp::Policy::named("o2-fp16"), coded.fused_master = false;
    if (masters) coded.state_dtype = CodedForm::e4m3_expanded;
    const std::vector<optim::NamedTensors> alone = trained(coded, 1, {}, 60);
    CHECK(alone[0].contains(masters ? "optimizer.state.4.exp_avg_sq.e4m3_expanded"
                                    : "optimizer.state.4.exp_avg_sq.4bit"));
    for (const int ranks : {2, 3}) CHECK(same_state(trained(coded, ranks, {}, 60)[0], alone[0]));
  }
}

TEST_CASE("train_together: the same if every rank keeps all, and in plain masters' steps") {
  check_bits(amp::Policy::named("split-bf16"), {.shard_optimizer = false});
  amp::Policy plain = amp::Policy::named("o2-fp16");
  plain.fused_master = false;
  check_bits(plain);
  amp::Policy wide = amp::Policy::named("full-bf16-sr");
  wide.accumulate_in_f32 = true;
  check_bits(wide);
}

TEST_CASE("train_together: calls out of order") {
  on_ranks(1, [](ThreadRank& self) {
    Net net(1);
    amp::Training training(amp::Policy::named("fp32"), net.model, net.adamw);
    CHECK(MESSAGE_OF(UsageError, training.no_backward()) ==
          "[Training.no_backward] this training is not part of a group. Call train_together() "
          "first, or leave it out.");
    training.train_together(self);
    CHECK(MESSAGE_OF(UsageError, training.train_together(self)) ==
          "[Training.train_together] called twice. Call it once, before the first step.");
    const auto loss = [&] {
      return cross_entropy(training.forward(net.model, ones({2, 12})), zeros({2}, i64));
    };
    training.backward(loss());
    training.step();
    CHECK(MESSAGE_OF(UsageError, training.backward(loss())) ==
          "[Training.backward] the gradients of the last step are still there. Call zero_grad() "
          "before the first backward() of a step.");
    CHECK(MESSAGE_OF(UsageError, training.begin_batch(-1)) ==
          "[Training.begin_batch] the batch has number -1. Count the batches of a training from 0, "
          "up to 1073741822.");
  });
}

TEST_CASE("train_together: random numbers of a wire depend on the batch") {
  on_ranks(1, [](ThreadRank& self) {
    Net net(1);
    amp::Training training(amp::Policy::named("fp32"), net.model, net.adamw);
    training.train_together(self, {.wire = wire_named("bf16-sr")});
    const auto backward = [&] {
      training.backward(cross_entropy(training.forward(net.model, ones({2, 12})), zeros({2}, i64)));
    };
    training.begin_batch(0);
    backward();
    CHECK(message_of<UsageError>(backward) ==
          "[Training.backward] the wire is bf16-sr, which draws by the number of the batch. Call "
          "begin_batch() before the forward pass of each.");
  });
}

TEST_CASE("train_together: a loss scale that changes between two batches of a step") {
  on_ranks(1, [](ThreadRank& self) {
    Net net(1);
    amp::Training training(amp::Policy::named("amp-fp16"), net.model, net.adamw);
    training.train_together(self);
    const auto loss = [&] {
      return cross_entropy(training.forward(net.model, ones({2, 12})), zeros({2}, i64));
    };
    training.backward(loss());
    training.scaler().update(1024);
    CHECK(MESSAGE_OF(UsageError, training.backward(loss())) ==
          "[Training.backward] the loss scale moved between two batches of a step, whose gradients "
          "are summed up already. Update the scaler between steps.");
  });
}

TEST_CASE("train_together: other models are refused on every rank") {
  on_ranks(2, [](ThreadRank& self) {
    nn::Sequential model(nn::Linear(4, self.rank() == 1 ? 3 : 2));
    optim::Sgd sgd(model.parameters(), {.lr = 0.1});
    amp::Training training(amp::Policy::named("fp32"), model, sgd);
    CHECK(MESSAGE_OF(UsageError, training.train_together(self)) ==
          "[distributed] rank 1 has parameter 0.weight [3, 4] f32, rank 0 has parameter 0.weight "
          "[2, 4] f32. Start all ranks alike.");
  });
}

TEST_CASE("train_together: batch norm that counts its batches is refused") {
  on_ranks(1, [](ThreadRank& self) {
    nn::Sequential model(nn::Linear(4, 3), nn::BatchNorm1d(3, {.momentum = std::nullopt}));
    optim::Sgd sgd(model.parameters(), {.lr = 0.1});
    amp::Training training(amp::Policy::named("fp32"), model, sgd);
    training.train_together(self);
    CHECK(MESSAGE_OF(UsageError, training.forward(model, ones({5, 4})))
              .starts_with("[batch_norm] without momentum a batch's weight is"));
  });
}

}  // namespace
}  // namespace halftone::test::reducer_test

// Operations of all ranks together, on ranks that are threads.

namespace halftone::test::collectives_test {
namespace {

TEST_CASE("collectives: texts of any length, by rank, on every rank") {
  std::vector<std::vector<std::string>> all(4);
  std::vector<std::string> told(4);
  on_ranks(4, [&](ThreadRank& self) {
    const auto rank = std::size_t(self.rank());
    all[rank] =
        distributed::all_gather_texts(self, "test", std::string(3 * rank, char('a' + rank)));
    told[rank] = distributed::broadcast_text(self, "test", rank == 0 ? "from 0" : "ignored");
    CHECK(distributed::largest(self, "test", 10 - self.rank()) == 10);
  });
  for (const auto& texts : all)
    CHECK(texts == std::vector<std::string>{"", "bbb", "cccccc", "ddddddddd"});
  CHECK(told == std::vector<std::string>(4, "from 0"));
}

TEST_CASE("collectives: rank 0's tensors, of any dtype, shape and layout") {
  manual_seed(5);
  optim::NamedTensors sent{{"weights", randn({3, 5})},
                           {"short", cast(randn({7}), bf16)},
                           {"count", scalar(41, i64)},
                           {"nothing", zeros({0, 4})},
                           {"images", views::channels_last(randn({2, 3, 4, 5}))}};
  std::vector<optim::NamedTensors> got(3);
  on_ranks(3, [&](ThreadRank& self) {
    got[std::size_t(self.rank())] =
        distributed::broadcast(self, "test", self.rank() == 0 ? sent : optim::NamedTensors{});
  });
  for (const auto& tensors : got) {
    REQUIRE(tensors.size() == sent.size());
    for (const auto& [name, x] : sent) {
      CHECK(tensors.at(name).dtype() == x.dtype());
      CHECK(tensors.at(name).shape() == x.shape());
      CHECK(tensors.at(name).to_vector<double>() == x.to_vector<double>());
    }
  }
}

TEST_CASE("collectives: every rank learns which rank differs, and in what") {
  std::vector<std::string> heard(3);
  on_ranks(3, [&](ThreadRank& self) {
    const std::string text =
        self.rank() == 2 ? "samples 9\nbatch_size 64\nend" : "samples 9\nbatch_size 32\nend";
    heard[std::size_t(self.rank())] =
        MESSAGE_OF(UsageError, distributed::require_agreement(self, "agreement", text));
  });
  for (const std::string& message : heard)
    CHECK(message ==
          "[distributed] rank 2 has batch_size 64, rank 0 has batch_size 32. Start all ranks "
          "alike.");
}

TEST_CASE("collectives: a text differs from its own prefix") {
  on_ranks(2, [&](ThreadRank& self) {
    CHECK(MESSAGE_OF(UsageError, distributed::require_agreement(
                                     self, "agreement", self.rank() == 0 ? "a 1" : "a 1\nb 2")) ==
          "[distributed] rank 1 has b 2, rank 0 has nothing. Start all ranks alike.");
  });
}

}  // namespace
}  // namespace halftone::test::collectives_test

// Shards of parameters, and results computed from all of them, on ranks that are threads.

namespace halftone::test::shards_test {
namespace {

using distributed::Shards;

TEST_CASE("Shards: ranges follow each other, begin at cuts, and are about equal") {
  const std::vector<int64_t> sizes{0, 1, 1023, 1024, 1025, 5000, 262144, 300000, 7, 40000};
  for (const int ranks : {1, 2, 3, 4, 7, 64}) {
    CAPTURE(ranks);
    const Shards shards(sizes, ranks);
    std::vector<int64_t> elements(std::size_t(ranks), 0);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      int64_t end = 0, cuts = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const Shards::Range range = shards.range(i, rank);
        CHECK(range.begin == end);
        CHECK((range.count == 0 || range.begin % Shards::cut_length(sizes[i]) == 0));
        end += range.count, cuts += shards.cuts(i, rank);
        elements[std::size_t(rank)] += range.count;
      }
      CHECK(end == sizes[i]);
      const int64_t cut = Shards::cut_length(sizes[i]);
      CHECK(cuts == (sizes[i] + cut - 1) / cut);
    }
    for (int rank = 0; rank < ranks; ++rank)
      CHECK(shards.elements(rank) == elements[std::size_t(rank)]);
    CHECK(std::ranges::max(elements) - std::ranges::min(elements) <= 2 * 16384);
  }
  for (const auto& [size, cut] :
       {std::pair{0, 1024}, {16384, 1024}, {16385, 2048}, {1 << 30, 16384}})
    CHECK(Shards::cut_length(size) == cut);
}

// --- norms

const std::vector<int64_t> sizes{1, 1024, 40000, 0, 3000, 5000};

/// The gradients of a rank; the fifth parameter has no gradient.
std::vector<Tensor> gradients(int ranks, int rank, DType dtype, double planted) {
  const Generator before = default_generator();
  manual_seed(11);
  const Shards shards(sizes, ranks);
  std::vector<Tensor> all;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    Tensor x = cast(randn({sizes[i]}, f64), dtype);
    if (i == 5) fill_with(views::slice(x, 0, 4999, 1), planted);
    if (rank >= 0) x = distributed::part_of(x, shards.range(i, rank));
    all.push_back(i == 4 ? Tensor{} : x);
  }
  default_generator() = before;
  return all;
}

double naive_norm(double p, DType dtype, double planted) {
  double total = 0;
  for (const Tensor& x : gradients(1, -1, dtype, planted))
    if (x.defined())
      for (const double value : x.to_vector<double>()) {
        const double size = std::abs(value);
        if (std::isinf(p)) total = size != size || size > total ? size : total;
        else total += std::pow(size, p);
      }
  return std::isinf(p) ? total : std::pow(total, 1 / p);
}

TEST_CASE("norms of shards have the same bits on any number of ranks") {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  for (const DType dtype : {f32, f64})
    for (const double p : {2.0, 1.0, 3.0, infinity})
      for (const double planted : {0.5, infinity, std::nan("")}) {
        CAPTURE(dtype);
        CAPTURE(p);
        CAPTURE(planted);
        std::vector<double> norms;
        for (const int ranks : {1, 2, 3, 4})
          for (const bool parts : {false, true})
            on_ranks(ranks, [&](ThreadRank& self) {
              const Tensor norm = distributed::norm_of(
                  self, Shards(sizes, ranks),
                  gradients(ranks, parts ? self.rank() : -1, dtype, planted), parts, p);
              const std::lock_guard lock(self.mutex());
              norms.push_back(norm.item());
            });
        const double expected = naive_norm(p, dtype, planted);
        CHECK(norms.size() == 2 * (1 + 2 + 3 + 4));
        for (const double norm : norms) {
          CHECK(((norm == norms[0]) || (std::isnan(norm) && std::isnan(norms[0]))));
          if (std::isfinite(expected)) CHECK(norm == doctest::Approx(expected).epsilon(1e-6));
          else CHECK(((norm == expected) || (std::isnan(norm) && std::isnan(expected))));
        }
      }
}

// --- trainings

/// A linear layer of 12 to 300, whose weight is sharded over several ranks.
struct Wide {
  nn::Sequential model;
  optim::AdamW adamw;
  explicit Wide(uint64_t seed) : model(network(seed)), adamw(model.parameters(), {.lr = 1e-2}) {}
  static nn::Sequential network(uint64_t seed) {
    manual_seed(seed);
    return nn::Sequential(nn::Linear(12, 300), nn::Gelu(), nn::Linear(300, 4));
  }
};

void take_steps(amp::Training& training, nn::Layer& model, int steps) {
  for (int step = 0; step < steps; ++step) {
    training.zero_grad();
    for (int batch = 0; batch < 6; batch += training.group() ? training.group()->size() : 1) {
      const int own = batch + (training.group() ? training.group()->rank() : 0);
      if (own >= 6) {
        training.no_backward();
        continue;
      }
      const Tensor inputs = full({2, 12}, 0.1 * (own + 1) + step);
      training.backward(cross_entropy(training.forward(model, inputs), full({2}, own % 4, i64)) *
                        (1.0 / 6));
    }
    training.step();
  }
}

/// Returns the state that this number of ranks saves after two steps, and the state after they load
/// it and do one more step.
optim::NamedTensors saved_by(int ranks, const std::string& strategy) {
  optim::NamedTensors state;
  on_ranks(ranks, [&](ThreadRank& self) {
    Wide net(1);
    amp::Training training(amp::Policy::named(strategy), net.model, net.adamw);
    training.train_together(self);
    take_steps(training, net.model, 2);
    const optim::NamedTensors own = copy_of(training.state_dict());
    if (self.rank() == 0) state = own;
  });
  return state;
}

optim::NamedTensors continued_on(int ranks, const std::string& strategy,
                                 const optim::NamedTensors& state, amp::Convert convert) {
  optim::NamedTensors end;
  on_ranks(ranks, [&](ThreadRank& self) {
    Wide net(uint64_t(self.rank() + 2));
    amp::Training training(amp::Policy::named(strategy), net.model, net.adamw);
    training.train_together(self);
    training.load_state_dict(self.rank() == 0 ? state : optim::NamedTensors{}, convert);
    take_steps(training, net.model, 1);
    const optim::NamedTensors own = copy_of(training.state_dict());
    if (self.rank() == 0) end = own;
  });
  return end;
}

TEST_CASE("states: saved by any number of ranks, loaded by any other") {
  for (const std::string strategy : {"fp32", "o2-bf16", "split-bf16", "full-bf16-sr"}) {
    CAPTURE(strategy);
    const optim::NamedTensors by_one = saved_by(1, strategy);
    const optim::NamedTensors end = continued_on(1, strategy, by_one, amp::Convert::refuse);
    CHECK(same_state(saved_by(4, strategy), by_one));
    for (const int ranks : {2, 3, 4})
      CHECK(same_state(continued_on(ranks, strategy, by_one, amp::Convert::refuse), end));
  }
}

TEST_CASE("other optimizers: the bits of one rank on 3, and states of any number of ranks") {
  using Made = std::unique_ptr<optim::Optimizer>;
  const std::vector<std::function<Made(const std::vector<Tensor>&)>> makers{
      [](const auto& p) { return std::make_unique<optim::Adagrad>(p); },
      [](const auto& p) { return std::make_unique<optim::NAdam>(p); },
      [](const auto& p) { return std::make_unique<optim::RAdam>(p); },
      [](const auto& p) { return std::make_unique<optim::Adafactor>(p); }};
  for (const auto& make : makers) {
    const auto trained = [&](int ranks, const optim::NamedTensors& from) {
      optim::NamedTensors state;
      on_ranks(ranks, [&](ThreadRank& self) {
        nn::Sequential model = Wide::network(uint64_t(self.rank() + 1));
        const Made optimizer = make(model.parameters());
        CAPTURE(optimizer->name());
        amp::Training training(amp::Policy::named("split-bf16"), model, *optimizer);
        training.train_together(self);
        if (!from.empty())
          training.load_state_dict(self.rank() == 0 ? from : optim::NamedTensors{});
        take_steps(training, model, 2);
        const optim::NamedTensors own = copy_of(training.state_dict());
        if (self.rank() == 0) state = own;
      });
      return state;
    };
    const optim::NamedTensors by_one = trained(1, {}), by_three = trained(3, {});
    CHECK(same_state(by_three, by_one));
    CHECK(same_state(trained(1, by_three), trained(2, by_one)));
  }
}

TEST_CASE("states: of another strategy, on several ranks") {
  const optim::NamedTensors o2 = saved_by(3, "o2-bf16");
  for (const std::string strategy : {"fp32", "split-bf16"}) {
    CAPTURE(strategy);
    const optim::NamedTensors end = continued_on(1, strategy, o2, amp::Convert::lossless);
    CHECK(same_state(continued_on(2, strategy, o2, amp::Convert::lossless), end));
  }
  const optim::NamedTensors rounded = continued_on(1, "full-bf16", o2, amp::Convert::rounding);
  CHECK(same_state(continued_on(3, "full-bf16", o2, amp::Convert::rounding), rounded));
}

TEST_CASE("states: an error on rank 0 is thrown on all ranks, and nothing has changed") {
  const optim::NamedTensors good = saved_by(1, "o2-bf16");
  const std::string shape_wanted =
      " instead of [300, 12]. Load what was saved for the same parameters.";
  const auto with = [&](const std::string& name, const Tensor& x) {
    optim::NamedTensors state = good;
    state[name] = x;
    return state;
  };
  optim::NamedTensors lacking = good;
  lacking.erase("optimizer.state.0.exp_avg");
  const std::vector<std::pair<optim::NamedTensors, std::string>> cases{
      {with("optimizer.state.0.exp_avg", zeros({7})),
       "[Training.load_state_dict] \"optimizer.state.0.exp_avg\" is [7] f32" + shape_wanted},
      {with("optimizer.master.0", zeros({12, 300})),
       "[Training.load_state_dict] \"optimizer.master.0\" is [12, 300] f32" + shape_wanted},
      {with("more", zeros({1})),
       "[Training.load_state_dict] the entry \"more\" is unknown. Load what a Training saved."},
      {with("model.0.bias", Tensor{}),
       "[Training.load_state_dict] the entry \"model.0.bias\" is undefined. Load what a Training "
       "saved."},
      {lacking, "exp_avg is missing"}};
  on_ranks(3, [&](ThreadRank& self) {
    Wide net(5);
    amp::Training training(amp::Policy::named("o2-bf16"), net.model, net.adamw);
    training.train_together(self);
    take_steps(training, net.model, 1);
    const optim::NamedTensors before = copy_of(training.state_dict());
    for (const auto& [state, message] : cases) {
      const auto load = [&] {
        training.load_state_dict(self.rank() == 0 ? state : NamedTensors{});
      };
      CHECK(message_of<Error>(load).find(message) != std::string::npos);
      CHECK(same_state(training.state_dict(), before));
    }
    CHECK(
        MESSAGE_OF(FormatError, training.load("/no/such/file")) ==
        "[load_safetensors] cannot open the file: /no/such/file: No such file or directory. Check "
        "the path.");
    CHECK(message_of<FormatError>([&] {
            training.write_state([](const TensorSource& source) {
              static_cast<void>(source.tensor("optimizer.master.0"));
              fail<FormatError>("checkpoint", "the disk is full. Make room.");
            });
          }) == "[checkpoint] the disk is full. Make room.");
    CHECK(same_state(training.state_dict(), before));
  });
}

TEST_CASE("states: files of one and of three ranks are the same bytes") {
  const TemporaryDirectory directory;
  for (const int ranks : {1, 3})
    on_ranks(ranks, [&](ThreadRank& self) {
      Wide net(1);
      amp::Training training(amp::Policy::named("split-bf16"), net.model, net.adamw);
      training.train_together(self);
      take_steps(training, net.model, 2);
      const auto path = directory / ("by" + std::to_string(ranks));
      training.save(path);
      train::save_training(directory / ("checkpoint" + std::to_string(ranks)), training,
                           {.step = 2});
      training.load(path);
      CHECK(
          train::load_training(directory / ("checkpoint" + std::to_string(ranks)), training).step ==
          2);
      const optim::NamedTensors state = training.state_dict();
      if (self.rank() == 0) CHECK(same_state(state, load_safetensors(path).tensors));
    });
  const auto bytes = [&](const std::string& name) {
    return files::read_text("test", directory / name, 1 << 20);
  };
  CHECK(bytes("by1") == bytes("by3"));
  for (const std::string file : {"/model.safetensors", "/optimizer.safetensors", "/state.json"})
    CHECK(bytes("checkpoint1" + file) == bytes("checkpoint3" + file));
}

/// An output of the only layer makes an infinite gradient, on one rank.
struct Overflowing {
  nn::Linear model{1, 4096, nn::LinearOptions{.bias = false}};
  optim::Sgd sgd{model.parameters(), {.lr = 0.1}};
};

TEST_CASE("an overflow in one rank's shard skips the step of all") {
  for (const bool clips : {false, true})
    on_ranks(3, [&](ThreadRank& self) {
      manual_seed(1);
      Overflowing net;
      amp::Training training(amp::Policy::named("amp-fp16"), net.model, net.sgd);
      training.train_together(self);
      const std::vector<double> before = net.model.weight.to_vector<double>();
      const double scale = training.scaler().scale_value();
      Tensor factors = full({1, 4096}, 1e-4);
      if (self.rank() == 1) factors.data<float>()[4000] = INFINITY;
      training.zero_grad();
      training.backward(sum(training.forward(net.model, ones({1, 1})) * factors));
      if (clips) CHECK(std::isinf(training.clip_grad_norm(1).item()));
      CHECK(!training.step());
      CHECK(training.scaler().scale_value() == scale / 2);
      CHECK(training.first_overflow() == "weight");
      CHECK(net.model.weight.to_vector<double>() == before);
      training.zero_grad();  // and the next step is done
      training.backward(sum(training.forward(net.model, ones({1, 1})) * full({1, 4096}, 1e-4)));
      CHECK(training.step());
      CHECK(training.skipped_steps() == 1);
    });
}

TEST_CASE("full weights from shards, and the optimizer after the training") {
  on_ranks(3, [](ThreadRank& self) {
    Wide net(3);
    optim::AdamW& adamw = net.adamw;
    std::vector<Tensor> weights;
    {
      amp::Training training(amp::Policy::named("o2-bf16"), net.model, adamw);
      training.train_together(self);
      take_steps(training, net.model, 2);
      const optim::NamedTensors state = training.state_dict();
      for (std::size_t i = 0; i < 4; ++i) {
        const Tensor weight = training.weight(i);
        CHECK(weight.shape() == net.model.parameters()[i].shape());
        if (self.rank() == 0)
          CHECK(same_bits(weight, state.at("optimizer.master." + std::to_string(i))));
      }
      CHECK(adamw.parameters()[0].rank() == 1);
    }
    const std::vector<Tensor> parameters = net.model.parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i)
      CHECK(adamw.parameters()[i].body() == parameters[i].body());
    for (const auto& [name, x] : adamw.state_dict()) CHECK(name.starts_with("param_groups."));
    Tensor weight = net.model.parameters()[0];
    weight.set_grad(full(weight.shape(), 1, weight.dtype()));
    adamw.step();
    CHECK(adamw.state_dict().at("state.0.exp_avg").shape() == weight.shape());
  });
}

TEST_CASE("an optimizer that is not elementwise is not sharded, with the same bits") {
  std::vector<optim::NamedTensors> ends;
  for (const int ranks : {1, 3})
    on_ranks(ranks, [&](ThreadRank& self) {
      manual_seed(4);
      nn::Sequential model = Wide::network(4);
      optim::Lamb lamb(model.parameters(), {.lr = 1e-2});
      amp::Training training(amp::Policy::named("o2-bf16"), model, lamb);
      training.train_together(self);
      CHECK(training.optimizer().parameters()[0].rank() == 2);
      take_steps(training, model, 2);
      const optim::NamedTensors state = copy_of(training.state_dict());
      if (self.rank() == 0) ends.push_back(state);
    });
  CHECK(same_state(ends[0], ends[1]));
}

TEST_CASE("a model that is moved after train_together()") {
  on_ranks(2, [](ThreadRank& self) {
    Wide net(3);
    amp::Training training(amp::Policy::named("fp32"), net.model, net.adamw);
    training.train_together(self);
    net.model.to(bf16), net.model.to(f32);
    CHECK(
        MESSAGE_OF(UsageError, take_steps(training, net.model, 1)) ==
        "[Training.backward] the model was moved or cast after train_together(), so the optimizer "
        "would update other tensors. Move or cast it before.");
  });
}

}  // namespace
}  // namespace halftone::test::shards_test
