// Shards of parameters, and results computed from all of them, on ranks that are threads.
#include "thread_group.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include <halftone/core/backend.h>
#include <halftone/distributed/shards.h>

#include "../amp/cases.h"
#include "../support.h"

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
    amp::Training training(amp::Strategy::named(strategy), net.model, net.adamw);
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
    amp::Training training(amp::Strategy::named(strategy), net.model, net.adamw);
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
    amp::Training training(amp::Strategy::named("o2-bf16"), net.model, net.adamw);
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
        message_of<FormatError>([&] { training.load("/no/such/file"); }) ==
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
      amp::Training training(amp::Strategy::named("split-bf16"), net.model, net.adamw);
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
      amp::Training training(amp::Strategy::named("amp-fp16"), net.model, net.sgd);
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
      amp::Training training(amp::Strategy::named("o2-bf16"), net.model, adamw);
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
      amp::Training training(amp::Strategy::named("o2-bf16"), model, lamb);
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
    amp::Training training(amp::Strategy::named("fp32"), net.model, net.adamw);
    training.train_together(self);
    net.model.to(bf16), net.model.to(f32);
    CHECK(
        message_of<UsageError>([&] { take_steps(training, net.model, 1); }) ==
        "[Training.backward] the model was moved or cast after train_together(), so the optimizer "
        "would update other tensors. Move or cast it before.");
  });
}

}  // namespace
}  // namespace halftone::test::shards_test
