// Traces: equal runs have equal ones, a change of one unit in the last place is named by its place,
// and files that other programs wrote or broke are refused.
#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <cmath>

#include <halftone/autograd/ops.h>
#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/core/random.h>
#include <halftone/lab/trial.h>
#include <halftone/nn/nn.h>
#include <halftone/optim/optimizers.h>
#include <halftone/policy/policy_file.h>
#include <halftone/policy/probe.h>

#include "support.h"

namespace halftone::test::trace_test {
namespace {

using lab::TraceRow;
using policy::Role;

constexpr int layers = 20;

nn::Sequential network() {
  nn::Sequential model;
  for (int i = 0; i < layers; ++i) model.add(nn::Linear(8, 8)), model.add(nn::Tanh());
  return model;
}

float next_up(float x) { return std::bit_cast<float>(std::bit_cast<uint32_t>(x) + 1); }

/// The trace of two steps; `change` may write to the model or to the loss's gradient first.
std::vector<TraceRow> trace_of(const std::function<void(nn::Sequential&)>& change,
                               float loss_factor = 1) {
  manual_seed(3);
  nn::Sequential model = network();
  const Tensor x = randn({4, 8});
  optim::Sgd optimizer(model.parameters(), {.lr = 0.1});
  amp::Training training =
      amp::apply(policy::watched(amp::Strategy::named("fp32")), model, optimizer);
  change(model);
  const auto tracer = std::make_shared<lab::Tracer>(1);
  const policy::Observation observation("test", training, tracer);
  for (int step = 0; step < 2; ++step) {
    training.zero_grad();
    const Tensor y = training.forward([&](const Tensor& in) { return model(in); }, x);
    const Tensor loss = sum(y) * double(step == 0 ? 1.0f : loss_factor);
    training.backward(loss);
    training.step();
  }
  return tracer->rows();
}

TEST_CASE("equal runs have equal traces, and rows say what they are of") {
  const auto rows = trace_of([](nn::Sequential&) {}), again = trace_of([](nn::Sequential&) {});
  CHECK_FALSE(lab::first_difference(rows, again));
  REQUIRE(rows.size() > 100);
  CHECK(rows.front().site == "0/linear.0");
  CHECK(rows.front().dtype == "f32");
  CHECK(rows.front().shape == Shape{4, 8});
  CHECK(rows.front().hash.size() == 16);
}

TEST_CASE("one unit in the last place of a weight is named at its layer, in each of 20 layers") {
  const auto rows = trace_of([](nn::Sequential&) {});
  for (int layer = 0; layer < layers; ++layer) {
    CAPTURE(layer);
    const auto changed = trace_of([&](nn::Sequential& model) {
      Tensor weight = model.parameters()[std::size_t(2 * layer)];
      float& value = weight.data<float>()[17];
      value = next_up(value);
    });
    const auto difference = lab::first_difference(rows, changed);
    REQUIRE(difference);
    REQUIRE(difference->here);
    CHECK(difference->here->step == 0);
    CHECK(difference->here->site == std::to_string(2 * layer) + "/linear.0");
    CHECK(difference->here->role == Role::weight);
  }
}

/// Hands its input on. In `forward` or `backward` the first number becomes one unit in the last
/// place larger.
struct Nudge : UserOp {
  static constexpr OpInfo info{"nudge", CastClass::as_is};
  bool in_forward, in_backward;
  Needs<1> needs{};
  Nudge(bool forward_too, bool backward_too) : in_forward(forward_too), in_backward(backward_too) {}

  static Tensor nudged(const Tensor& x, bool change) {
    Tensor y = x.clone();
    if (change) y.data<float>()[0] = next_up(y.data<float>()[0]);
    return y;
  }
  Tensor forward(const Tensor& x) const { return nudged(x, in_forward); }
  std::array<Tensor, 1> backward(const Tensor& dy) const { return {nudged(dy, in_backward)}; }
};

struct NudgeLayer final : nn::Layer {
  bool in_forward, in_backward;
  NudgeLayer(bool forward_too, bool backward_too)
      : in_forward(forward_too), in_backward(backward_too) {}
  Tensor forward(const Tensor& x) const override {
    return apply(Nudge(in_forward, in_backward), x);
  }
  void describe(nn::Fields&) override {}
};

/// The trace of one step of linear layers, each followed by a Nudge; that of layer `at` changes a
/// result or a gradient.
std::vector<TraceRow> nudged_trace(int at, bool in_backward) {
  manual_seed(4);
  nn::Sequential model;
  for (int i = 0; i < layers; ++i) {
    model.add(nn::Linear(8, 8));
    model.add(NudgeLayer(i == at && !in_backward, i == at && in_backward));
  }
  const Tensor x = randn({4, 8});
  optim::Sgd optimizer(model.parameters(), {.lr = 0.1});
  amp::Training training =
      amp::apply(policy::watched(amp::Strategy::named("fp32")), model, optimizer);
  const auto tracer = std::make_shared<lab::Tracer>(1);
  const policy::Observation observation("test", training, tracer);
  training.backward(sum(training.forward([&](const Tensor& in) { return model(in); }, x)));
  training.step();
  return tracer->rows();
}

TEST_CASE("one unit in the last place is named at each of 20 results and 20 gradients") {
  const auto rows = nudged_trace(-1, false);
  for (const bool in_backward : {false, true})
    for (int layer = 0; layer < layers; ++layer) {
      CAPTURE(layer);
      const auto difference = lab::first_difference(rows, nudged_trace(layer, in_backward));
      REQUIRE(difference);
      REQUIRE(difference->here);
      CHECK(difference->here->site == std::to_string(2 * layer + 1) + "/nudge.0");
      CHECK(difference->here->role == (in_backward ? Role::grad_input : Role::output));
    }
}

TEST_CASE("one unit in the last place of a gradient is named in backward of its step") {
  const auto rows = trace_of([](nn::Sequential&) {}, 1),
             changed = trace_of([](nn::Sequential&) {}, next_up(1));
  const auto difference = lab::first_difference(rows, changed);
  REQUIRE(difference);
  REQUIRE(difference->here);
  CHECK(difference->here->step == 1);
}

TEST_CASE("files: what was written is read, and a broken line is refused") {
  const TemporaryDirectory directory;
  lab::Tracer tracer(1);
  CHECK(tracer.begin_pass(0));
  const std::string site = "a\"b";
  const policy::Seen seen{
      .site = site, .op = "linear", .role = Role::output, .input = 0, .quantizer = nullptr};
  const Tensor x = from({1, 2, 2}, bf16), bad = from({1, INFINITY}, f32);
  tracer.tensor(seen, x, x);
  tracer.tensor(seen, bad, bad);
  write_file(directory / "trace.jsonl", tracer.lines());
  const auto rows = lab::read_trace("diff", directory / "trace.jsonl");
  CHECK_FALSE(lab::first_difference(rows, tracer.rows()));
  CHECK(rows.at(0).root_mean_square == std::sqrt(3.0));
  CHECK(std::isnan(rows.at(1).root_mean_square));
  for (const char* line :
       {"{}", R"({"step":1,"input":0,"role":"none","hash":"0123456789abcdef","shape":[]})",
        R"({"step":1,"input":0,"role":"output","hash":"0123456789abcdeg","shape":[]})",
        R"({"step":1,"input":0,"role":"output","hash":"0123456789abcdef","shape":[-1]})"}) {
    CAPTURE(line);
    write_file(directory / "trace.jsonl", tracer.lines() + line + "\n");
    CHECK(contains(
        message_of<FormatError>([&] { lab::read_trace("diff", directory / "trace.jsonl"); }),
        "1 lines are not rows of a trace"));
  }
}

TEST_CASE("words of a difference") {
  TraceRow row{.step = 3,
               .site = "fc/linear.0",
               .role = Role::output,
               .dtype = "bf16",
               .shape = Shape{2, 3},
               .hash = "0123456789abcdef",
               .root_mean_square = 0.5};
  TraceRow other = row;
  other.hash = "0123456789abcdee", other.root_mean_square = 0.75;
  const auto text = [](const std::vector<TraceRow>& a, const std::vector<TraceRow>& b) {
    return lab::text_of(*lab::first_difference(a, b));
  };
  CHECK(
      text({row}, {other}) ==
      "step 3, fc/linear.0, output [2, 3] bf16: other bits; root mean squares 0.5 and 0.75 differ "
      "by 0.33");
  CHECK(text({row, row}, {row}) ==
        "the second ends before step 3, fc/linear.0, output [2, 3] bf16");
  other.site = "head/linear.0";
  CHECK(contains(text({row}, {other}), "other tensors: step 3, fc/linear.0"));
}

}  // namespace
}  // namespace halftone::test::trace_test
