// checkpoint(): the same gradients for less memory, for segments of every kind.
#include <doctest/doctest.h>

#include <halftone/autograd/checkpoint.h>
#include <halftone/autograd/input_caster.h>
#include <halftone/autograd/ops.h>
#include <halftone/core/memory_ledger.h>

namespace halftone::test::checkpoint_test {
namespace {

Tensor numbers(const Shape& shape, uint64_t seed) {
  manual_seed(seed);
  return rand(shape);
}
std::vector<float> floats(const Tensor& x) { return x.to_vector<float>(); }

TEST_CASE("gradients of inputs and of parameters in the closure are the same, bit for bit") {
  const auto gradients = [](bool checkpointed) {
    const Tensor x = numbers({4, 8}, 1).set_requires_grad(),
                 w = numbers({8, 8}, 2).set_requires_grad();
    const Segment segment = [&](const std::vector<Tensor>& in) {
      return gelu(matmul(tanh(in[0]), w));
    };
    const Tensor y = checkpointed ? checkpoint(segment, {x}) : segment({x});
    sum(square(y)).backward();
    return std::pair{floats(x.grad()), floats(w.grad())};
  };
  CHECK(gradients(true) == gradients(false));
}

TEST_CASE("only parameters require gradients: the segment is recorded nevertheless") {
  const Tensor w = numbers({3}, 3).set_requires_grad(), x = ones({3});
  sum(checkpoint([&](const std::vector<Tensor>& in) { return in[0] * w; }, {x})).backward();
  CHECK(floats(w.grad()) == floats(x));
  CHECK_FALSE(x.grad().defined());
}

TEST_CASE("an input may be absent, unused, or used by the segment twice") {
  const Tensor x = ones({2}).set_requires_grad(), unused = ones({2}).set_requires_grad();
  const Tensor y = checkpoint(
      [](const std::vector<Tensor>& in) {
        CHECK_FALSE(in[1].defined());
        return in[0] * in[0] + in[0];
      },
      {x, Tensor{}, unused});
  sum(y).backward();
  CHECK(floats(x.grad()) == std::vector<float>{3, 3});
  CHECK_FALSE(unused.grad().defined());
}

TEST_CASE("activations inside the segment are not kept") {
  const Tensor x = numbers({64, 64}, 4).set_requires_grad();
  const auto held = [&](bool checkpointed) {
    Tensor y = x;
    const Segment segment = [](const std::vector<Tensor>& in) {
      Tensor h = in[0];
      for (int i = 0; i < 8; ++i) h = exp(sigmoid(h));
      return h;
    };
    const int64_t before = memory_report().now_of(MemoryUse::activation);
    for (int i = 0; i < 4; ++i) y = checkpointed ? checkpoint(segment, {y}) : segment({y});
    const int64_t kept = memory_report().now_of(MemoryUse::activation) - before;
    reset_peak_memory();
    sum(y).backward();
    return std::pair{kept, memory_report().peak_of(MemoryUse::activation) - before};
  };
  const auto [plain_kept, plain_peak] = held(false);
  const auto [kept, peak] = held(true);
  CHECK(plain_kept == 64 * x.bytes());
  CHECK(kept == 4 * x.bytes());
  CHECK(peak < plain_peak / 2);
}

TEST_CASE(
    "dropout draws the same mask again, and the stream goes on as if nothing was recomputed") {
  manual_seed(9);
  const Tensor x = ones({200}).set_requires_grad();
  const Tensor y =
      checkpoint([](const std::vector<Tensor>& in) { return dropout(in[0], 0.5); }, {x});
  const RandomKey after = default_generator().state();
  y.backward(ones({200}));
  CHECK(floats(x.grad()) == floats(y));
  CHECK(default_generator().state().seed == after.seed);
  CHECK(default_generator().state().offset == after.offset);
}

/// Casts the inputs of every operation to bf16, and counts.
struct ToBf16 final : InputCaster {
  int calls = 0;
  CastPlan plan(const OpInfo& op, std::span<Tensor> inputs, bool) override {
    cast_inputs(op, inputs);
    return {};
  }
  void cast_inputs(const OpInfo& op, std::span<Tensor> inputs) override {
    if (op.name == "cast") return;
    ++calls;
    for (Tensor& x : inputs) x = halftone::cast(x, bf16);
  }
};

TEST_CASE("the recomputed segment uses the caster it was recorded with") {
  const Tensor x = numbers({16}, 5).set_requires_grad(),
               same = numbers({16}, 5).set_requires_grad();
  const Segment segment = [](const std::vector<Tensor>& in) { return exp(tanh(in[0])); };
  const auto caster = std::make_shared<ToBf16>();
  Tensor y, plain;
  {
    const CasterScope region(caster);
    y = checkpoint(segment, {x}), plain = segment({same});
  }
  CHECK(y.dtype() == bf16);
  const int calls = caster->calls;
  CHECK(active_caster() == nullptr);
  y.backward(ones({16}, bf16));  // outside the region
  plain.backward(ones({16}, bf16));
  CHECK(active_caster() == nullptr);
  CHECK(caster->calls == calls + 2);
  CHECK(x.grad().dtype() == f32);
  CHECK(floats(x.grad()) == floats(same.grad()));
}

TEST_CASE("a segment recorded without a caster does not use a later one") {
  const Tensor x = ones({4}).set_requires_grad();
  const Tensor y = checkpoint([](const std::vector<Tensor>& in) { return exp(in[0]); }, {x});
  const auto caster = std::make_shared<ToBf16>();
  const CasterScope region(caster);
  y.backward(ones({4}));
  CHECK(caster->calls == 0);
  CHECK(floats(x.grad()) == floats(y));
}

TEST_CASE("a segment that throws when recomputed does not change the state") {
  const Tensor x = ones({2}).set_requires_grad();
  int runs = 0;
  const Tensor y = checkpoint(
      [&](const std::vector<Tensor>& in) {
        const Tensor dropped = dropout(in[0], 0.5);
        if (++runs == 2) fail<UsageError>("segment", "once is enough. Stop.");
        return dropped;
      },
      {x});
  const RandomKey before = default_generator().state();
  CHECK_THROWS_WITH_AS(y.backward(ones({2})), "[segment] once is enough. Stop.", UsageError);
  CHECK(default_generator().state().offset == before.offset);
  CHECK(grad_enabled());
  CHECK(active_caster() == nullptr);
}

TEST_CASE("checkpoints nest") {
  const Tensor x = from({0.5, -1}, f64).set_requires_grad();
  const Segment inner = [](const std::vector<Tensor>& in) { return tanh(in[0]); };
  const Segment outer = [&](const std::vector<Tensor>& in) {
    return square(checkpoint(inner, in));
  };
  sum(checkpoint(outer, {x})).backward();
  const std::vector<double> gradient = x.grad().to_vector<double>();
  for (std::size_t i = 0; i < 2; ++i) {
    const double t = std::tanh(x.to_vector<double>()[i]);
    CHECK(gradient[i] == doctest::Approx(2 * t * (1 - t * t)));
  }
}

}  // namespace

}  // namespace halftone::test::checkpoint_test
