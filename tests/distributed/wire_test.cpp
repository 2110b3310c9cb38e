// Wire formats compared with core's quantizers, and values that they must transmit.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <doctest/doctest.h>

#include <halftone/halftone.h>

#include "../amp/cases.h"
#include "../support.h"
#include "thread_group.h"

namespace halftone::test::wire_test {
namespace {
using distributed::check_wire;
using distributed::from_wire;
using distributed::Payload;
using distributed::to_wire;
using distributed::WireFormat;

std::vector<float> floats(const Tensor& x) { return x.to_vector<float>(); }

/// Numbers of many magnitudes, with zeros of both signs.
Tensor gradients(int64_t count, uint64_t seed, DType dtype = f32) {
  Generator before = default_generator();
  manual_seed(seed);
  Tensor x = randn({count});
  default_generator() = before;
  for (int64_t i = 0; i < count; ++i) {
    x.data<float>()[i] *= std::ldexp(1.0F, int(i % 40) - 30 - int(i / 1024) * 9);
    if (i % 17 == 5) x.data<float>()[i] = i % 2 == 0 ? 0.0F : -0.0F;
  }
  Tensor y = empty({count}, dtype);
  copy_into(y, x);
  return y;
}

std::vector<float> there_and_back(const Tensor& x, std::string_view wire, RandomKey key = {}) {
  return floats(from_wire(to_wire(x, WireFormat::named(wire), key)));
}

Quantizer quantizer_of(std::string_view format, Rounding rounding) {
  Quantizer quantizer{.grid = *number_format_named(format), .rounding = rounding};
  if (format != "bf16") quantizer.scaling = Scaling::per_block(1, 1024);
  quantizer.scaling.rule = ScaleRule::rceil;
  return quantizer;
}

TEST_CASE("wire: names") {
  CHECK(WireFormat::names().size() == 20);
  for (const std::string_view text : WireFormat::names()) {
    CHECK(name(WireFormat::named(text)) == text);
    CHECK_NOTHROW(check_wire(WireFormat::named(text)));
  }
  CHECK(WireFormat::named("own") == WireFormat{});
  CHECK(WireFormat::named("f8_e5m2-sr+feedback") ==
        WireFormat{.dtype = f8_e5m2, .stochastic = true, .error_feedback = true});
  CHECK(message_of<UsageError>([] { WireFormat::named("f8_e4m2"); }) ==
        "[distributed] there is no wire format named \"f8_e4m2\". Did you mean \"f8_e4m3\"?");
  CHECK(message_of<UsageError>([] { WireFormat::named("bf16+feedbck"); }) ==
        "[distributed] there is no wire format named \"bf16+feedbck\". Did you mean "
        "\"bf16+feedback\"?");
  CHECK_THROWS_AS(WireFormat::named("f32-sr"), UsageError);
  CHECK_THROWS_AS(check_wire({.dtype = f32, .stochastic = true}), UsageError);
  CHECK_THROWS_AS(check_wire({.dtype = f64}), UsageError);
}

TEST_CASE("wire: values that a dtype represents do not change") {
  for (const DType own : {f32, bf16, f16, f64})
    for (const char* wire : {"own", "f32", "own+feedback"}) {
      const Tensor x = gradients(100, 1, own);
      const Payload payload = to_wire(x, WireFormat::named(wire));
      CHECK(!payload.scales.defined());
      CHECK(payload.values.to_vector<double>() == x.to_vector<double>());
      CHECK(from_wire(payload).dtype() == (own == f64 ? f64 : f32));
    }
  const Tensor x = gradients(100, 1, bf16), wide = gradients(100, 1, f64);
  for (const char* wire : {"bf16", "bf16-sr", "bf16-sr+feedback"}) {
    CHECK(to_wire(x, WireFormat::named(wire)).values.raw_data() == x.raw_data());
    CHECK(to_wire(wide, WireFormat::named(wire)).values.dtype() == f64);
  }
}

TEST_CASE("wire: the numbers of core's quantizer, and no others") {
  struct Case {
    const char *wire, *grid;
    DType dtype;
  };
  for (const auto& [wire, grid, dtype] :
       {Case{"bf16", "bf16", bf16}, Case{"f16", "f16", f16}, Case{"f8_e4m3", "e4m3", f8_e4m3},
        Case{"f8_e5m2", "e5m2", f8_e5m2}})
    for (const int64_t count : {0, 1, 5, 1023, 1024, 1025, 5000})
      for (const bool stochastic : {false, true}) {
        CAPTURE(wire);
        CAPTURE(count);
        CAPTURE(stochastic);
        const Tensor x = gradients(count, 3);
        const RandomKey key{5, 9};
        const Quantizer quantizer =
            quantizer_of(grid, stochastic ? Rounding::stochastic : Rounding::nearest_even);
        const std::string name = std::string(wire) + (stochastic ? "-sr" : "");
        const Payload payload = to_wire(x, WireFormat::named(name), key);
        CHECK(payload.values.dtype() == dtype);
        CHECK(payload.values.numel() == count);
        CHECK(floats(from_wire(payload)) ==
              floats(quantized(x, {.quantizer = quantizer, .key = key})));
      }
}

TEST_CASE("wire: gradients that are short already") {
  const Tensor x = gradients(1500, 4, bf16), wide = from_vector(x.to_vector<float>(), {1500});
  CHECK(there_and_back(x, "f8_e4m3") == there_and_back(wide, "f8_e4m3"));
  CHECK(there_and_back(x, "f8_e4m3") != floats(wide));
}

TEST_CASE("wire: any range of a tensor has the values of the whole tensor there") {
  const Tensor x = gradients(5000, 6);
  for (const char* wire : {"own", "bf16-sr", "f16", "f8_e4m3"}) {
    const WireFormat format = WireFormat::named(wire);
    const Payload whole = to_wire(x, format, {1, 2});
    const std::vector<float> all = floats(from_wire(whole));
    for (const auto& [begin, count] : {std::pair<int64_t, int64_t>{0, 5000},
                                       {64, 960},
                                       {1024, 1024},
                                       {960, 1088},
                                       {1088, 3912},
                                       {4992, 8},
                                       {64, 0}}) {
      CAPTURE(wire);
      CAPTURE(begin);
      const Payload part = whole.part(begin, count);
      Payload arriving = Payload::empty(format, f32, begin, count);  // as another rank receives it
      const auto sent = part.tensors(), to_come = arriving.tensors();
      REQUIRE(sent.size() == to_come.size());
      for (std::size_t k = 0; k < sent.size(); ++k) {
        REQUIRE(sent[k].bytes() == to_come[k].bytes());
        copy_into(to_come[k], sent[k]);
      }
      const std::vector<float> own = floats(from_wire(arriving));
      CHECK(own == std::vector<float>(all.begin() + begin, all.begin() + begin + count));
    }
  }
}

TEST_CASE("wire: infinity and NaN pass, and affect only their piece") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  Tensor x = gradients(3000, 8);
  const Tensor finite = x.clone();
  x.data<float>()[1500] = -infinity, x.data<float>()[1700] = NAN;
  for (const char* wire : {"bf16", "bf16-sr", "f16", "f8_e5m2", "f8_e4m3", "f8_e4m3-sr"}) {
    CAPTURE(wire);
    const std::vector<float> now = there_and_back(x, wire), before = there_and_back(finite, wire);
    const bool has_infinity = std::string_view(wire).substr(0, 7) != "f8_e4m3";
    CHECK((has_infinity ? now[1500] == -infinity : std::isnan(now[1500])));
    CHECK(std::isnan(now[1700]));
    for (std::size_t i = 0; i < 3000; ++i)
      if (i < 1024 || i >= 2048) CHECK(now[i] == before[i]);
  }
}

TEST_CASE("wire: no finite number becomes infinite under a scale") {
  for (const char* wire : {"f16", "f8_e4m3", "f8_e5m2", "f8_e4m3-sr"})
    for (const float x : {3e38F, 1.0F, 448.0F, 463.0F, 65519.0F, 1e-38F}) {
      CAPTURE(wire);
      CAPTURE(x);
      const float y = there_and_back(full({3}, x), wire, {1, 1})[1];
      CHECK(std::abs(y - x) <= x / 8);
    }
}

TEST_CASE("wire: random rounding is unbiased, and depends only on its key") {
  const Tensor x = full({20000}, 1.0F + 0x1p-9F);  // a quarter of the way to bf16's next
  const WireFormat format = WireFormat::named("bf16-sr");
  const std::vector<float> y = floats(from_wire(to_wire(x, format, {3, 1})));
  const auto up = double(std::ranges::count(y, 1.0F + 0x1p-7F));
  CHECK(std::ranges::count(y, 1.0F) == 20000 - int64_t(up));
  CHECK(std::abs(up / 20000 - 0.25) < 5 * std::sqrt(0.25 * 0.75 / 20000));
  CHECK(floats(from_wire(to_wire(x, format, {3, 1}))) == y);
  CHECK(floats(from_wire(to_wire(x, format, {3, 1 << 20}))) != y);
  CHECK(floats(from_wire(to_wire(x, format, {4, 1}))) != y);
}

TEST_CASE("wire: with error feedback the errors do not accumulate") {
  const Tensor x = gradients(2000, 12);
  for (const char* wire : {"f8_e4m3", "f8_e5m2-sr", "bf16", "f16"}) {
    CAPTURE(wire);
    const WireFormat format = WireFormat::named(std::string(wire) + "+feedback");
    const Tensor rest = zeros({2000});
    std::vector<double> sum(2000, 0), plain(2000, 0);
    constexpr int steps = 64;
    for (int step = 0; step < steps; ++step) {
      const RandomKey key{1, uint64_t(step) << 20};
      const std::vector<float> c = floats(from_wire(to_wire(x, format, key, {rest}))),
                               without = there_and_back(x, wire, key);
      for (std::size_t i = 0; i < 2000; ++i) sum[i] += double(c[i]), plain[i] += double(without[i]);
    }
    double fed = 0, unfed = 0;
    for (std::size_t i = 0; i < 2000; ++i) {
      const double exact = steps * double(x.data<float>()[i]);
      fed += std::abs(sum[i] - exact), unfed += std::abs(plain[i] - exact);
      // The only missing part is that of the last rounding.
      CHECK(sum[i] + double(rest.data<float>()[i]) ==
            doctest::Approx(exact).epsilon(1e-5 * std::abs(exact) + 1e-30));
    }
    CHECK(fed < unfed / 4);
  }
}

TEST_CASE("wire: error feedback follows the loss scale, and an overflow does not spoil it") {
  const WireFormat format = WireFormat::named("f8_e4m3+feedback");
  Tensor x = full({1030}, 0.3);
  const Tensor rest = zeros({1030});
  to_wire(x, format, {}, {rest});
  const std::vector<float> kept = floats(rest);
  CHECK(kept[0] != 0);
  x.data<float>()[3] = std::numeric_limits<float>::infinity();
  to_wire(x, format, {}, {rest, 0.5});
  const std::vector<float> after = floats(rest);
  for (std::size_t i = 0; i < 1024; ++i) CHECK(after[i] == kept[i] / 2);
  CHECK(after[1029] != kept[1029] / 2);  // in a piece that was finite
}

}  // namespace
}  // namespace halftone::test::wire_test

// Policy files on several ranks: the scales, draws and rules of one rank.

namespace halftone::test::policy_test {
namespace {

/// Scales from history, random rounding of operands, gradients, parameters and states; other rules
/// from the third step on, and where a gradient is noisy.
const std::string everything = R"({
  "halftone_policy": 1, "name": "everything", "extends": "amp-bf16", "seed": 4,
  "quantizers": {
    "delayed": {"format": "e4m3", "scale": {"per": "tensor", "from": "history", "history": 2}},
    "random": {"format": "e5m2", "rounding": "stochastic", "scale": {"per": "tensor"}}},
  "rules": [
    {"match": {"op": "linear"}, "compute": "f32", "input": "delayed", "weight": "delayed",
     "grad_output": "random", "grad_weight": "random"},
    {"match": {"op": "linear", "path": "4", "steps": [2, null]},
     "input": {"like": "delayed", "format": "e3m2"}},
    {"match": {"op": "linear", "when": {"role": "grad_output", "norm_to_noise": {"below": 14.4},
                                        "over": 1}},
     "grad_output": "none"}],
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
      amp::Training training(policy::read_text(policy), net.model, net.adamw);
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
  for (const char* site : {"0/linear.0", "4/linear.0"}) {
    const std::vector<double> last =
        state.at(std::string("session.switch.2.") + site).to_vector<double>();
    CAPTURE(last[1]);
    CHECK(last[1] > 10);
    CHECK((last[0] == 1) == (last[1] < 14.4));
  }
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
      policy::read_text(R"({"halftone_policy": 1, "name": "random", "rules": [{"match": {}, "input":
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
    amp::Training training(amp::Policy::named("amp-bf16"), net.model, net.adamw);
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
    amp::Training training(policy::read_text(text), net.model, net.adamw);
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
    amp::Training training(policy::read_text(self.rank() == 0 ? everything : other), net.model,
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
      amp::Training training(policy::read_text(everything), net.model, net.adamw);
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
