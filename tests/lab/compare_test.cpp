// Comparisons: the same policy twice differs nowhere; formats behave as predicted; planted faults
// are named first, with their reason.
#include <doctest/doctest.h>

#include <cmath>
#include <set>

#include <halftone/amp/session.h>
#include <halftone/autograd/input_caster.h>
#include <halftone/autograd/ops.h>
#include <halftone/core/backend.h>
#include <halftone/data/tensor_dataset.h>
#include <halftone/lab/compare.h>
#include <halftone/nn/models/gpt.h>
#include <halftone/nn/nn.h>
#include <halftone/policy/policy.h>

namespace halftone::test {
namespace {

using lab::Comparison;
using lab::Deviation;
using policy::Role;

lab::Workload on_batch(std::unique_ptr<nn::Layer> model, const Tensor& x, const Tensor& y,
                       bool regression) {
  return {.task = regression ? train::regression(*model) : train::language_modeling(*model),
          .model = std::move(model),
          .train = [x, y] { return data::DataLoader(data::TensorDataset(x, y)); },
          .example = data::Batch{x, y}};
}

lab::Workload linear() {
  manual_seed(2);
  auto model = std::make_unique<nn::Linear>(256, 128);
  return on_batch(std::move(model), randn({64, 256}), randn({64, 128}), true);
}

lab::Workload small_gpt() {
  manual_seed(3);
  auto model = std::make_unique<nn::models::Gpt>(nn::models::GptOptions{
      .vocabulary = 23, .context = 16, .layers = 2, .heads = 2, .width = 32});
  return on_batch(std::move(model), randint(0, 23, {4, 16}), randint(0, 23, {4, 16}), false);
}

amp::Strategy fp8_linear(const std::string& quantizer) {
  return policy::parse(R"({"halftone_policy": 1, "name": "t", "extends": "fp32", "rules":
    [{"match": {"op": "linear"}, "input": ")" +
                       quantizer + R"(", "weight": ")" + quantizer + R"("}]})");
}

TEST_CASE("a policy beside itself differs nowhere") {
  for (const char* name : {"fp32", "amp-bf16"}) {
    const amp::Strategy same = amp::Strategy::named(name);
    const Comparison c = lab::compare(small_gpt, same, same);
    CHECK(c.first == -1);
    CHECK(c.reference_loss == c.candidate_loss);
    for (const Deviation& row : c.rows) {
      CAPTURE(row.site);
      CHECK(row.twin == 0);
    }
  }
}

TEST_CASE("Gaussian numbers in a linear layer round as every format predicts") {
  for (const char* name : {"e4m3", "e5m2", "bf16", "f16", "mxfp8", "mxfp6", "mxfp6-e3m2", "mxfp4",
                           "nvfp4", "fp8_tensor", "fp8_block"}) {
    CAPTURE(name);
    const Comparison c = lab::compare(linear, amp::Strategy::named("fp32"), fp8_linear(name));
    int seen = 0;
    for (const Deviation& row : c.rows) {
      if (row.role != Role::input && row.role != Role::output) continue;
      ++seen;
      if (row.role == Role::input) {
        CHECK(row.rounding > 0.7);
        CHECK(row.rounding < 1.4);
      } else {
        CHECK(row.amplification > 0.7);
        CHECK(row.amplification < 1.4);
        CHECK(row.twin == doctest::Approx(row.local).epsilon(1e-3));
      }
    }
    CHECK(seen == 2);
  }
}

/// Multiplies the result, or the gradients, of operation number `at`.
class Fault final : public InputCaster {
 public:
  Fault(int at, float factor) : inner_(shared_active_caster()), at_(at), factor_(factor) {}
  CastPlan plan(const OpInfo& op, std::span<Tensor> inputs, bool has_f32_result) override {
    CastPlan plan = inner_->plan(op, inputs, has_f32_result);
    if (op.name != "cast" && count_++ == at_) plan.tap = std::make_shared<Tap>(plan.tap, factor_);
    return plan;
  }
  void cast_inputs(const OpInfo& op, std::span<Tensor> inputs) override {
    inner_->cast_inputs(op, inputs);
  }

 private:
  struct Wrong final : Computation {
    Computation& right;
    float factor;
    Wrong(Computation& r, float f) : right(r), factor(f) {}
    Tensor run(std::span<const Tensor> inputs) override {
      Tensor y = right.run(inputs).clone(), by = full({}, factor, f32);
      if (is_floating(y.dtype())) backend_for(y).scale_all({&y, 1}, by);
      return y;
    }
    Tensor aside(std::span<const Tensor> inputs, std::shared_ptr<Node>* kept) override {
      return right.aside(inputs, kept);
    }
  };
  struct Tap final : OpTap {
    std::shared_ptr<OpTap> inner;
    float factor;
    Tap(std::shared_ptr<OpTap> i, float f) : inner(std::move(i)), factor(f) {}
    Tensor forward(std::span<const Tensor> inputs, Computation& operation) override {
      Wrong wrong(operation, factor);
      return inner->forward(inputs, wrong);
    }
    std::vector<Tensor> backward(Node& node, const Tensor& dy) override {
      return inner->backward(node, dy);
    }
  };
  std::shared_ptr<InputCaster> inner_;
  int at_, count_ = 0;
  float factor_;
};

TEST_CASE("a result that is 1 + 2^-5 times what it should be is named first, at every site") {
  const amp::Strategy f32_strategy = amp::Strategy::named("fp32"),
                      candidate = amp::Strategy::named("amp-bf16");
  CHECK(lab::compare(small_gpt, f32_strategy, candidate).first == -1);
  std::vector<std::string> sites;
  for (const Deviation& row : lab::compare(small_gpt, f32_strategy, candidate).rows)
    if (row.role == Role::output) sites.push_back(row.site);
  REQUIRE(sites.size() >= 20);
  for (int at = 0; at < int(sites.size()); ++at) {
    CAPTURE(sites[std::size_t(at)]);
    const lab::Workload work = small_gpt();
    // The task's forward function is wrapped, so that the fault stands inside of the region.
    const auto make = [&] {
      lab::Workload spoilt = small_gpt();
      const auto forward = spoilt.task.forward;
      spoilt.task.forward = [forward, at](const Tensor& x) {
        if (!shared_active_caster()) return forward(x);
        const CasterScope scope(std::make_shared<Fault>(at, 1 + 0x1p-5f));
        return forward(x);
      };
      return spoilt;
    };
    const Comparison c = lab::compare(make, candidate, candidate);
    REQUIRE(c.first >= 0);
    CHECK(c.rows[std::size_t(c.first)].site == sites[std::size_t(at)]);
    CHECK(c.rows[std::size_t(c.first)].role == Role::output);
    CHECK(c.rows[std::size_t(c.first)].reason.find("times as much as its operands") !=
          std::string::npos);
  }
}

TEST_CASE("a stale scale is named first, at every site that has one, forward and backward") {
  const amp::Strategy delayed = policy::parse(R"({"halftone_policy": 1, "name": "t",
    "extends": "fp32", "quantizers": {"late": {"format": "e4m3", "scale": {"per": "tensor",
    "from": "history", "history": 4}}}, "rules": [{"match": {"op": "linear"}, "input": "late",
    "weight": "late", "grad_output": "late"}]})");
  const Comparison sound = lab::compare(small_gpt, amp::Strategy::named("fp32"), delayed);
  CHECK(sound.first == -1);
  std::set<std::string> entries;
  lab::compare(small_gpt, amp::Strategy::named("fp32"), delayed,
               {.prepare = [&](amp::Training& training) {
                 for (const auto& [name, x] : training.region().session->state_dict())
                   if (name.starts_with("scale.")) entries.insert(name);
               }});
  REQUIRE(entries.size() >= 20);
  for (const std::string& entry : entries) {
    CAPTURE(entry);
    const Comparison c = lab::compare(
        small_gpt, amp::Strategy::named("fp32"), delayed, {.prepare = [&](amp::Training& training) {
          NamedTensors state = training.region().session->state_dict();
          Tensor& scale = state.at(entry);
          scale = scale.clone();
          scale.data<float>()[0] *= 64;
          training.region().session->load_state_dict(state);
        }});
    REQUIRE(c.first >= 0);
    const Deviation& row = c.rows[std::size_t(c.first)];
    CHECK("scale." + row.site + '.' + std::string(policy::name(row.role)) ==
          entry.substr(0, entry.find_last_not_of("0123456789") + 1));
    CHECK(row.reason.find("a stale scale") != std::string::npos);
  }
}

}  // namespace
}  // namespace halftone::test
