// Policy files on several ranks: the scales, draws and rules of one rank.
#include "thread_group.h"

#include <doctest/doctest.h>

#include <halftone/policy/policy_file.h>
#include <halftone/policy/probe.h>

#include "../amp/cases.h"
#include "../support.h"

namespace halftone::test::policy_test {
namespace {

/// Scales from history, random rounding of operands, gradients, parameters and states; other rules
/// from the third step on.
const std::string everything = R"({
  "halftone_policy": 1, "name": "everything", "extends": "amp-bf16", "seed": 4,
  "quantizers": {
    "delayed": {"format": "e4m3", "scale": {"per": "tensor", "from": "history", "history": 2}},
    "random": {"format": "e5m2", "rounding": "stochastic", "scale": {"per": "tensor"}}},
  "rules": [
    {"match": {"op": "linear"}, "compute": "f32", "input": "delayed", "weight": "delayed",
     "grad_output": "random", "grad_weight": "random"},
    {"match": {"op": "linear", "path": "4", "steps": [2, null]},
     "input": {"like": "delayed", "format": "e3m2"}}],
  "optimizer": {"parameters": {"format": "e8m12", "rounding": "stochastic"},
                "states": {"exp_avg": {"format": "e8m9", "rounding": "stochastic"}}}})";

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

struct Run {
  std::string policy = everything;
  std::vector<int64_t> batches{6, 6, 1, 6};  // of each step
  bool forward_twice = false;
  distributed::Options options{};
  std::vector<optim::NamedTensors> states{};  // of rank 0 at the end, and the other ranks' models

  explicit Run(int ranks, const std::function<void(Run&)>& choose = {})
      : states(std::size_t(ranks)) {
    if (choose) choose(*this);
    manual_seed(77);
    const Tensor inputs = randn({25 * 5, 12}), labels = randint(0, 4, {25 * 5});
    on_ranks(ranks, [&](ThreadRank& self) {
      Net net(uint64_t(self.rank()));
      amp::Training training(policy::parse(policy), net.model, net.adamw);
      training.train_together(self, options);
      int64_t first = 0;
      for (const int64_t count : batches) {
        training.zero_grad();
        for (int64_t round = 0; round < count; round += self.size()) {
          const int64_t in_step = round + self.rank(), batch = first + in_step;
          training.begin_batch(batch);
          if (in_step >= count) {
            training.no_backward();
            continue;
          }
          Tensor outputs = training.forward(net.model, views::slice(inputs, 0, batch * 5, 5));
          if (forward_twice)
            outputs = outputs + training.forward(net.model, views::slice(inputs, 0, batch * 5, 5));
          training.backward(cross_entropy(outputs, views::slice(labels, 0, batch * 5, 5)) *
                            (1.0 / double(count)));
        }
        first += count;
        training.step();
      }
      training.begin_batch(first);
      optim::NamedTensors& state = states[std::size_t(self.rank())];
      state = copy_of(training.state_dict());
      CHECK(state.empty() == (self.rank() != 0));
      if (self.rank() != 0)
        for (const auto& [name, x] : nn::state_dict(net.model)) state["model." + name] = x.clone();
    });
  }
};

void check_ranks(const std::function<void(Run&)>& choose = {}) {
  const optim::NamedTensors alone = Run(1, choose).states[0];
  optim::NamedTensors model = alone;
  std::erase_if(model, [](const auto& entry) { return !entry.first.starts_with("model."); });
  for (const int ranks : {2, 3, 4}) {
    CAPTURE(ranks);
    const Run run(ranks, choose);
    for (std::size_t rank = 0; rank < run.states.size(); ++rank)
      CHECK(same_state(run.states[rank], rank == 0 ? alone : model));
  }
}

TEST_CASE("policies on ranks: the state of one, with scales, draws and rules that change") {
  check_ranks();
  const optim::NamedTensors state = Run(1).states[0];
  CHECK(state.at("session.position.0/linear.0.input").item() == 4);  // a step each, not a batch
  CHECK(state.at("session.scale.4/linear.0.input").item() != 1);
}

TEST_CASE(
    "policies on ranks: some have no batch in the first step, and in the one that brings a new "
    "grid") {
  check_ranks([](Run& run) { run.batches = {1, 4, 1, 1, 5}; });
}

TEST_CASE("policies on ranks: several passes of a batch draw different numbers") {
  check_ranks([](Run& run) { run.forward_twice = true; });
  manual_seed(1);
  nn::Sequential model(nn::Linear(12, 20));
  optim::Sgd sgd(model.parameters(), {.lr = 1e-2});
  amp::Training training(
      policy::parse(R"({"halftone_policy": 1, "name": "random", "rules": [{"match": {}, "input":
                       {"format": "e5m2", "rounding": "stochastic"}}]})"),
      model, sgd);
  const Tensor inputs = randn({5, 12});
  std::vector<Tensor> outputs;
  for (const int64_t batch : {0, 1, 0}) {
    training.begin_batch(batch);
    for (int pass = 0; pass < 2; ++pass)
      outputs.push_back(training.forward(model, inputs).detach());
  }
  for (std::size_t i = 0; i < 4; ++i)
    for (std::size_t j = 0; j < i; ++j) CHECK(!same_bits(outputs[i], outputs[j]));
  CHECK((same_bits(outputs[4], outputs[0]) && same_bits(outputs[5], outputs[1])));
}

TEST_CASE("a pass that is repeated to explain it does not count for batch norm") {
  const auto statistics_after = [](bool explains) {
    Net net(2);
    amp::Training training(amp::Strategy::named("amp-bf16"), net.model, net.adamw);
    training.train_together();
    manual_seed(5);
    const Tensor inputs = randn({4, 12}), labels = randint(0, 4, {4});
    const auto loss = [&] { return cross_entropy(training.forward(net.model, inputs), labels); };
    for (int step = 0; step < 2; ++step) {
      training.zero_grad();
      training.begin_batch(step);
      training.backward(loss());
      training.step();
      if (explains) CHECK_FALSE(policy::explain_overflow(training, loss));
    }
    return copy_of(nn::state_dict(net.model));
  };
  CHECK(same_state(statistics_after(true), statistics_after(false)));
}

TEST_CASE("policies on ranks: an overflow of one does not enter the histories") {
  const auto with_scale = [](Run& run) {
    run.policy.replace(run.policy.find("\"seed\""), 0, "\"loss_scale\": {\"init\": 1e38}, ");
    run.policy.replace(run.policy.find("\"weight\": \"delayed\""), 0,
                       "\"grad_input\": \"delayed\", ");
  };
  check_ranks(with_scale);
  CHECK(Run(1, with_scale).states[0].at("scaler.scale").item() < 1e38);
}

TEST_CASE("policies on ranks: a file sets its wire, and options may override it") {
  const auto wired = [](Run& run) {
    run.policy.replace(run.policy.find("\"seed\""), 0,
                       "\"communication\": {\"gradients\": \"f8_e4m3-sr\"}, ");
  };
  check_ranks(wired);
  const optim::NamedTensors plain = Run(1).states[0];
  CHECK(!same_bits(Run(1, wired).states[0].at("model.0.weight"), plain.at("model.0.weight")));
  const auto unwired = [&](Run& run) {
    wired(run);
    run.options.wire = distributed::WireFormat{};
  };
  CHECK(same_bits(Run(1, unwired).states[0].at("model.0.weight"), plain.at("model.0.weight")));
}

TEST_CASE("policies on ranks: a rule that matches nothing anywhere is refused on all") {
  std::string text = everything;
  text.replace(text.find("\"path\": \"4\""), 11, "\"path\": \"5\"");
  std::vector<std::string> said(3);
  on_ranks(3, [&](ThreadRank& self) {
    Net net(1);
    amp::Training training(policy::parse(text), net.model, net.adamw);
    training.train_together(self);
    training.begin_batch(self.rank());
    if (self.rank() == 0)
      training.backward(cross_entropy(training.forward(net.model, ones({2, 12})), zeros({2}, i64)));
    else training.no_backward();
    said[std::size_t(self.rank())] = message_of<UsageError>([&] { training.step(); });
  });
  for (const std::string& message : said)
    CHECK(message.starts_with("[policy everything] rule 1 (\"\") matches nothing in this model"));
}

TEST_CASE("policies on ranks: other policies of the same name are refused") {
  std::string other = everything;
  other.replace(other.find("\"seed\": 4"), 9, "\"seed\": 5");
  on_ranks(2, [&](ThreadRank& self) {
    Net net(1);
    amp::Training training(policy::parse(self.rank() == 0 ? everything : other), net.model,
                           net.adamw);
    CHECK(message_of<UsageError>([&] {
            training.train_together(self);
          }).starts_with("[distributed] rank 1 has policy "));
  });
}

TEST_CASE("policies on ranks: a probe sees the batches of its rank, and changes nothing") {
  const auto state_of = [](bool watched) {
    std::vector<optim::NamedTensors> states(2);
    on_ranks(2, [&](ThreadRank& self) {
      Net net(1);
      amp::Training training(policy::parse(everything), net.model, net.adamw);
      training.train_together(self);
      std::optional<policy::Probe> probe;
      if (watched && self.rank() == 0) probe.emplace(training, policy::ProbeOptions{});
      training.begin_batch(self.rank());
      training.backward(cross_entropy(training.forward(net.model, ones({2, 12})), zeros({2}, i64)));
      training.step();
      if (probe) CHECK(!probe->rows().empty());
      states[std::size_t(self.rank())] = copy_of(training.state_dict());
    });
    return states[0];
  };
  CHECK(same_state(state_of(true), state_of(false)));
}

/// Counts its passes in a buffer.
struct Counting final : nn::Layer {
  nn::Linear inner{12, 4};
  nn::Buffer passes{zeros({}, i64)};
  Tensor forward(const Tensor& x) const override {
    ++*passes.data<int64_t>();
    return inner(x);
  }
  void describe(nn::Fields& f) override { f("inner", inner), f("passes", passes); }
};

TEST_CASE("a module that writes a buffer of its own does not train on several ranks") {
  for (const int ranks : {1, 2}) {
    std::vector<std::string> errors(std::size_t(ranks), "none");
    on_ranks(ranks, [&](ThreadRank& self) {
      nn::Sequential model(nn::BatchNorm1d(12), Counting());
      optim::Sgd sgd(model.parameters(), {.lr = 0.1});
      amp::Training training = amp::apply("fp32", model, sgd);
      training.train_together(self);
      try {
        training.zero_grad();
        training.forward(model, ones({3, 12}));
      } catch (const UsageError& error) { errors[std::size_t(self.rank())] = error.what(); }
    });
    for (const std::string& error : errors)
      CHECK(error == (ranks == 1 ? "none"
                                 : "[Training.forward] the forward pass wrote the buffer "
                                   "\"1.passes\", and each of 2 processes sees other batches, so "
                                   "their models would differ. Write it after the step, from "
                                   "numbers that all processes have; or train on one process."));
  }
}

TEST_CASE("the terms of a step are summed over the ranks") {
  on_ranks(3, [&](ThreadRank& self) {
    nn::Linear model(2, 2);
    optim::Sgd sgd(model.parameters(), {.lr = 0.1});
    amp::Training training = amp::apply("fp32", model, sgd);
    CHECK(training.sum_of_ranks(5) == 5);
    training.train_together(self);
    CHECK(training.sum_of_ranks(0.5 + self.rank()) == 4.5);
  });
}

}  // namespace
}  // namespace halftone::test::policy_test
