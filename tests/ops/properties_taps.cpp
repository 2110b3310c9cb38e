// The hook around an operation, for every operation: one that changes nothing changes no bit and
// frees all its bytes, each gradient can be computed alone, and another instance of the operation
// computes the same.
#include <algorithm>
#include <bit>
#include <set>

#include <halftone/halftone.h>

#include "ops/properties.h"

namespace halftone::test::properties_taps {
namespace {

/// Gives a tap to every operation except casts.
class TapCaster final : public InputCaster {
 public:
  explicit TapCaster(std::shared_ptr<OpTap> tap) : tap_(std::move(tap)) {}
  CastPlan plan(const OpInfo& op, std::span<Tensor>, bool) override {
    if (op.name == "cast") return {};
    return {.tap = tap_};
  }
  void cast_inputs(const OpInfo&, std::span<Tensor>) override {}

 private:
  std::shared_ptr<OpTap> tap_;
};

struct Identity : OpTap {
  int forwards = 0, backwards = 0;
  Tensor forward(std::span<const Tensor> inputs, Computation& operation) override {
    ++forwards;
    return operation.run(inputs);
  }
  std::vector<Tensor> backward(Node& node, const Tensor& dy) override {
    ++backwards;
    return node.backward(dy);
  }
};

/// Computes the gradient of each input separately.
struct OneByOne final : Identity {
  std::vector<Tensor> backward(Node& node, const Tensor& dy) override {
    std::vector<Tensor> gradients;
    for (std::size_t i = 0; i < node.edges.size(); ++i) {
      std::vector<Tensor> own = node.backward_for(dy, uint32_t(1) << i);
      for (std::size_t j = 0; j < own.size(); ++j) CHECK((j == i || !own[j].defined()));
      gradients.push_back(own[i]);
    }
    return gradients;
  }
};

/// Computes the operation twice, and passes on the result and the gradients of the second one.
struct Aside final : Identity {
  std::vector<std::shared_ptr<Node>> shadows{};
  Tensor forward(std::span<const Tensor> inputs, Computation& operation) override {
    Tensor aside;
    const RandomKey state = default_generator().state();
    try {
      std::shared_ptr<Node> shadow;
      aside = operation.aside(inputs, &shadow);
      shadows.push_back(shadow);
    } catch (const UnsupportedError&) {  // statistics, checkpoints
    }
    default_generator().set_state(state);
    Tensor result = operation.run(inputs);
    return aside.defined() ? aside : result;
  }
  std::vector<Tensor> backward(Node& node, const Tensor& dy) override {
    std::vector<Tensor> own = node.backward(dy);
    // Backward visits equal operations in the opposite order.
    const auto same = [&](const auto& shadow) { return shadow->info == node.info; };
    const auto last = std::find_if(shadows.rbegin(), shadows.rend(), same);
    if (last == shadows.rend()) return own;
    std::vector<Tensor> gradients = (*last)->backward(dy);
    shadows.erase(std::next(last).base());
    for (std::size_t i = 0; i < gradients.size(); ++i)
      if (!own[i].defined()) gradients[i] = {};
    return gradients;
  }
};

std::vector<uint64_t> bits_of(const Tensor& x) {
  std::vector<uint64_t> bits;
  if (!x.defined()) return bits;
  if (x.dtype() == i64)
    for (const int64_t v : x.to_vector<int64_t>()) bits.push_back(uint64_t(v));
  else
    for (const double v : x.to_vector<double>()) bits.push_back(std::bit_cast<uint64_t>(v));
  return bits;
}

void check_same(const Outcome& a, const Outcome& b) {
  CHECK(a.y.dtype() == b.y.dtype());
  CHECK(bits_of(a.y) == bits_of(b.y));
  for (std::size_t i = 0; i < a.gradients.size(); ++i) {
    INFO("gradient of input ", i);
    REQUIRE(a.gradients[i].defined() == b.gradients[i].defined());
    if (!a.gradients[i].defined()) continue;
    CHECK(a.gradients[i].dtype() == b.gradients[i].dtype());
    CHECK(bits_of(a.gradients[i]) == bits_of(b.gradients[i]));
  }
}

template <class Tap> void check_tap(bool counts_bytes) {
  constexpr std::array dtypes{f32, bf16};
  each_case(dtypes, [&](const OpSamples& samples, const Case& test, DType dtype) {
    if (samples.name == "cast") return;  // casters are not asked for casts
    const Tensors inputs = inputs_of(test, dtype);
    const RandomKey state = default_generator().state();
    const int64_t before = memory_report(test_device()).total_now;
    const Outcome plain = run_case(test, inputs);
    const int64_t kept = memory_report(test_device()).total_now - before;
    default_generator().set_state(state);
    const auto tap = std::make_shared<Tap>();
    Outcome tapped;
    {
      const CasterScope region(std::make_shared<TapCaster>(tap));
      tapped = run_case(test, inputs);
    }
    check_same(plain, tapped);
    if (counts_bytes) {
      // Some calls do nothing: a cast to the same dtype, dropout with probability 0.
      const bool computed = std::ranges::none_of(
          inputs, [&](const Tensor& x) { return x.defined() && x.storage() == plain.y.storage(); });
      CHECK((!computed || tap->forwards > 0));
      CHECK((!computed || !test.gradient || tap->backwards > 0));
      CHECK(memory_report(test_device()).total_now - before == 2 * kept);
    }
  });
}

TEST_CASE("a tap that changes nothing changes no bit and frees all its bytes") {
  check_tap<Identity>(true);
}

TEST_CASE("each gradient can be computed alone, with the bits that it has among the others") {
  check_tap<OneByOne>(false);
}

TEST_CASE("another instance of an operation computes the same, forward and backward") {
  check_tap<Aside>(false);
}

// --- mistakes of a tap

struct Misbehaves final : OpTap {
  enum Fault { never_runs, other_dtype, other_shape, other_gradient } fault;
  explicit Misbehaves(Fault f) : fault(f) {}
  Tensor forward(std::span<const Tensor> inputs, Computation& operation) override {
    if (fault == never_runs) return inputs[0];
    const Tensor y = operation.run(inputs);
    if (fault == other_dtype) return cast(y, bf16);
    if (fault == other_shape) return sum(y);
    return y;
  }
  std::vector<Tensor> backward(Node& node, const Tensor& dy) override {
    std::vector<Tensor> gradients = node.backward(dy);
    gradients[0] = cast(gradients[0], bf16);
    return gradients;
  }
};

Tensor exp_under(Misbehaves::Fault fault, const Tensor& x) {
  const CasterScope region(std::make_shared<TapCaster>(std::make_shared<Misbehaves>(fault)));
  return exp(x);
}

TEST_CASE("a tap that does not run the operation, or returns something else, is refused") {
  const Tensor x = ones({3}).set_requires_grad();
  CHECK_THROWS_WITH_AS(exp_under(Misbehaves::never_runs, x),
                       "[exp] its tap did not run it, so that it has nothing to go back with. Call "
                       "operation.run() once.",
                       UsageError);
  CHECK_THROWS_WITH_AS(exp_under(Misbehaves::other_dtype, x),
                       "[exp] its tap handed on [3] bf16 for a result [3] f32. A tap changes "
                       "values only.",
                       DTypeError);
  CHECK_THROWS_AS(exp_under(Misbehaves::other_shape, x), DTypeError);
  const Tensor y = exp_under(Misbehaves::other_gradient, x);
  CHECK_THROWS_AS(y.backward(ones({3})), DTypeError);
}

}  // namespace
}  // namespace halftone::test::properties_taps

// The saved tensors that readers list (autograd/engine.h) equal the ledger's bytes for every
// operation: none keeps a tensor that its reader does not list.

namespace halftone::test::properties_saved {
namespace {

/// The storages that the nodes of a tensor's graph keep, and its own.
std::set<const Storage*> storages_behind(const Tensor& y) {
  static const std::vector<OperationReader> readers = catalogue_readers();
  std::set<const Storage*> storages{y.storage().get()};
  std::set<const Node*> seen;
  std::vector<const Node*> waiting;
  if (y.meta() && y.meta()->creator) waiting.push_back(y.meta()->creator.get());
  while (!waiting.empty()) {
    const Node* const node = waiting.back();
    waiting.pop_back();
    if (!seen.insert(node).second) continue;
    std::vector<Tensor> kept;
    const auto reader =
        std::ranges::find_if(readers, [&](const auto& r) { return r.saved(*node, kept); });
    REQUIRE(reader != readers.end());
    CHECK(reader->info == node->info);
    for (const Tensor& x : kept) storages.insert(x.storage().get());
    for (const Edge& edge : node->edges)
      if (edge.input && edge.input->creator) waiting.push_back(edge.input->creator.get());
  }
  return storages;
}

TEST_CASE("an operation keeps what its reader lists, and nothing else") {
  constexpr std::array dtypes{f32, bf16};
  each_case(dtypes, [](const OpSamples&, const Case& test, DType dtype) {
    const Tensors leaves = leaves_of(test, inputs_of(test, dtype));
    const int64_t before = memory_report(test_device()).total_now;
    const Tensor y = test.call(leaves);
    std::set<const Storage*> kept = storages_behind(y);
    for (const Tensor& x : leaves)
      if (x.defined()) kept.erase(x.storage().get());
    int64_t bytes = 0;  // statistics of a case may be on another device
    for (const Storage* storage : kept)
      if (storage->device() == test_device()) bytes += storage->bytes();
    CHECK(memory_report(test_device()).total_now - before == bytes);
  });
}

}  // namespace
}  // namespace halftone::test::properties_saved
