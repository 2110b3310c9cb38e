// checkpoint(): the same gradients for less memory, for segments of every kind.
#include <doctest/doctest.h>

#include <halftone/halftone.h>

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

/// Reads and writes a buffer of its own in each pass, and has running statistics of three kinds.
struct Remembering final : nn::Layer {
  bool recompute = false;
  nn::Linear in{6, 8};
  nn::BatchNorm1d norm{8}, plain_mean{8, {.momentum = {}}};
  nn::InstanceNorm1d own{4, {.track_running_stats = true}};
  nn::Buffer scale{ones({})}, passes{zeros({}, i64)}, fixed{full({}, 0.5)};

  Tensor segment(const Tensor& x) const {
    const Tensor y = plain_mean(norm(in(x)));
    copy_into(scale, scale * 0.5 + mean(abs(y.detach())));
    ++*passes.data<int64_t>();  // a write that nothing announces
    const Tensor z = own(reshape(y, {8, 4, 2}));
    return dropout(flatten(z, 1) * scale.clone() * fixed, 0.25);
  }
  Tensor forward(const Tensor& x) const override {
    if (!recompute) return segment(x);
    return checkpoint([this](const std::vector<Tensor>& v) { return segment(v[0]); }, {x});
  }
  void describe(nn::Fields& f) override {
    f("in", in), f("norm", norm), f("plain_mean", plain_mean), f("own", own), f("scale", scale);
    f("passes", passes), f("fixed", fixed);
  }
};

TEST_CASE("a recomputation sees the buffers of the first run, and leaves those of now") {
  std::map<std::string, std::vector<std::vector<double>>> results;
  for (const char* kind : {"plain", "inside of the module", "around the module"}) {
    manual_seed(4);
    Remembering model;
    model.recompute = kind == std::string("inside of the module");
    const bool around = kind == std::string("around the module");
    auto& result = results[kind];
    const auto pass = [&](const Tensor& x) {
      if (!around) return model(x);
      return checkpoint([&](const std::vector<Tensor>& v) { return model(v[0]); }, {x});
    };
    const Tensor a = numbers({8, 6}, 1), b = numbers({8, 6}, 2);
    const Tensor first = sum(square(pass(a))), second = sum(exp(pass(b)));
    first.backward(), second.backward();  // each after the other's forward pass
    for (const auto& [name, x] : model.named_buffers()) result.push_back(x.to_vector<double>());
    for (const Tensor& x : model.parameters()) result.push_back(x.grad().to_vector<double>());
    CHECK(model.passes.item() == 2);
    CHECK(model.norm.num_batches_tracked.item() == 2);
  }
  CHECK(results["inside of the module"] == results["plain"]);
  CHECK(results["around the module"] == results["plain"]);
}

TEST_CASE("a recomputation keeps no copies of buffers that the segment does not write") {
  nn::BatchNorm1d norm(64);
  norm.eval();
  const Tensor x = ones({2, 64}).set_requires_grad();
  const auto kept = [&](bool checkpointed) {
    const int64_t before = memory_report().now_of(MemoryUse::workspace);
    const Tensor y = checkpointed
                         ? checkpoint([&](const std::vector<Tensor>& v) { return norm(v[0]); }, {x})
                         : norm(x);
    return memory_report().now_of(MemoryUse::workspace) - before;
  };
  kept(true);  // kernels may keep memory from their first call
  CHECK(kept(true) == 0);
  norm.train();
  CHECK(kept(true) > 0);  // running statistics
  CHECK(kept(false) == 0);
}

}  // namespace

}  // namespace halftone::test::checkpoint_test
