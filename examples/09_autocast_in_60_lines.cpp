// Lesson 9: autocast with a cache in 60 lines. You will see the whole of autocast written out as a
// function that every operation calls before it computes, that a GPT under it has the bits of the
// library's autocast, and what goes wrong if the cache forgets one of its two checks.
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include <halftone/halftone.h>

#include "output.h"

namespace ht = halftone;
using ht::CastClass;

namespace {

/// The checks of the cache; the second half of this lesson leaves one out.
struct Checks {
  bool version = true, recorded = true;
};

/// Autocast: autograd asks the caster in its slot about each operation (autograd/slots.h).
class Autocast final : public ht::InputCaster {
 public:
  explicit Autocast(ht::DType dtype, Checks checks = {}) : dtype_(dtype), checks_(checks) {}

  /// Replaces the inputs of an operation by recorded casts. The operation's class says to what.
  void cast_inputs(const ht::OpInfo& op, std::span<ht::Tensor> inputs) override {
    switch (op.cast_class) {
      case CastClass::low_precision: return cast_all(inputs, dtype_);
      case CastClass::full_precision: return cast_all(inputs, ht::f32);
      case CastClass::widest_input: return cast_all(inputs, widest(inputs));
      case CastClass::as_is: return;
      case CastClass::banned: ht::fail<ht::UsageError>(op.name, op.instead);
    }
  }
  ht::CastPlan plan(const ht::OpInfo& op, std::span<ht::Tensor> inputs, bool) override {
    cast_inputs(op, inputs);
    return {};
  }

  int casts = 0, hits = 0;  // how many casts were made, and how many the cache had

 private:
  struct Entry {
    ht::Tensor weight{};  // owns the leaf: its address cannot become another tensor's
    std::shared_ptr<ht::Storage> storage{};
    uint64_t version = 0;
    ht::Tensor result{};
  };

  static bool casts_apply_to(const ht::Tensor& x) {
    return x.defined() && ht::is_floating(x.dtype()) && x.dtype() != ht::f64;
  }
  static ht::DType widest(std::span<const ht::Tensor> inputs) {
    std::optional<ht::DType> widest;
    for (const ht::Tensor& x : inputs)
      if (casts_apply_to(x)) widest = widest ? ht::promote(*widest, x.dtype()) : x.dtype();
    return widest.value_or(ht::f32);
  }
  void cast_all(std::span<ht::Tensor> inputs, ht::DType dtype) {
    for (ht::Tensor& x : inputs)
      if (casts_apply_to(x) && x.dtype() != dtype) x = converted(x, dtype);
  }
  /// Casts weights, which are leaves that require a gradient, once; everything else every time.
  ht::Tensor converted(const ht::Tensor& x, ht::DType dtype) {
    if (!x.is_leaf() || !x.requires_grad()) return ++casts, ht::cast(x, dtype);
    Entry& entry = cache_[{x.meta().get(), dtype}];
    const uint64_t version = x.storage()->version();  // every write in place increments it
    if (entry.storage == x.storage() && (entry.version == version || !checks_.version))
      return ++hits, entry.result;
    std::optional<ht::EnableGrad> recorded;  // a later pass with gradients can use the entry
    if (checks_.recorded) recorded.emplace();
    entry = {x, x.storage(), version, ht::cast(x, dtype)};
    return ++casts, entry.result;
  }

  ht::DType dtype_;
  Checks checks_;
  std::map<std::pair<const ht::AutogradMeta*, ht::DType>, Entry> cache_{};
};

/// Fills the slot for one call of a function.
template <class F> auto under(const std::shared_ptr<Autocast>& autocast, const F& function) {
  const ht::CasterScope scope(autocast);
  return function();
}

void title(const char* text) { std::printf("\n--- %s\n\n", text); }

/// The loss of a GPT and the gradients of all its parameters.
struct Pass {
  double loss = 0;
  std::vector<ht::Tensor> gradients{};
};
/// Two batches in one region: the second one finds the casts of the first.
template <class Region> Pass pass_of(ht::nn::models::Gpt& model, const Region& region) {
  ht::manual_seed(1);
  model.zero_grad();
  const ht::Tensor loss = region([&] {
    ht::Tensor sum = ht::zeros({});
    for (int batch = 0; batch < 2; ++batch) {
      const ht::Tensor tokens = ht::randint(0, 50, {4, 32}), next = ht::randint(0, 50, {4 * 32});
      sum = sum + ht::cross_entropy(ht::reshape(model(tokens), {4 * 32, 50}), next) / 2;
    }
    return sum;
  });
  loss.backward();  // needs no region: the casts are part of the graph
  Pass pass{loss.item()};
  for (const ht::Tensor& p : model.parameters()) pass.gradients.push_back(p.grad());
  return pass;
}

int64_t count_unequal(const Pass& a, const Pass& b) {
  int64_t unequal = a.loss == b.loss ? 0 : 1;
  for (std::size_t i = 0; i < a.gradients.size(); ++i) {
    const ht::Tensor other = ht::not_equal(a.gradients[i], b.gradients[i]);
    unequal += int64_t(ht::sum(ht::cast(other, ht::f64)).item());
  }
  return unequal;
}

void same_bits() {
  title("a GPT of two layers, two batches: loss and gradients");
  ht::manual_seed(0);
  ht::nn::models::Gpt model(
      {.vocabulary = 50, .context = 32, .layers = 2, .heads = 2, .width = 32});
  const auto mine = std::make_shared<Autocast>(ht::bf16);
  const Pass f32 = pass_of(model, [](const auto& f) { return f(); });
  const Pass here = pass_of(model, [&](const auto& f) { return under(mine, f); });
  const Pass library = pass_of(model, [](const auto& f) { return ht::amp::autocast(ht::bf16, f); });
  std::printf("loss in f32           %.9f\n", f32.loss);
  std::printf("under this autocast   %.9f, %d casts made, %d found in the cache\n", here.loss,
              mine->casts, mine->hits);
  std::printf("under the library's   %.9f\n", library.loss);
  std::printf("%ld parameters; numbers that differ between the last two: %ld\n",
              long(model.parameter_count()), long(count_unequal(here, library)));
}

/// Returns w x under bf16 before and after an optimizer's step inside one region.
void stale_weight(Checks checks) {
  const ht::Tensor x = ht::ones({1, 1});
  ht::Tensor w = ht::ones({1, 1}).set_requires_grad();
  const auto autocast = std::make_shared<Autocast>(ht::bf16, checks);
  const auto product = [&] { return under(autocast, [&] { return ht::linear(x, w).item(); }); };
  const double before = product();
  ht::fill_with(w, 2);  // as an optimizer: writes in place
  const double after = product();
  std::printf("  %-26s weight 1: %g; weight 2: %g\n", checks.version ? "with the check" : "without",
              before, after);
}

/// An evaluation under NoGrad, then a training pass, with one cache.
void lost_gradient(Checks checks) {
  const ht::Tensor x = ht::ones({1, 1});
  ht::Tensor w = ht::ones({1, 1}).set_requires_grad(), other = ht::ones({1}).set_requires_grad();
  const auto autocast = std::make_shared<Autocast>(ht::bf16, checks);
  const auto product = [&] {
    return under(autocast, [&] { return ht::sum(ht::linear(x, w, other)); });
  };
  {
    const ht::NoGrad no_grad;
    under(autocast, [&] { return ht::linear(x, w); });
  }
  product().backward();
  std::printf("  %-26s gradient of the weight: %s, of the bias: %g\n",
              checks.recorded ? "with the check" : "without", w.grad().defined() ? "1" : "none",
              other.grad().item());
}

}  // namespace

int main() {
  same_bits();
  title("the check of the version: a weight is updated inside a region");
  for (const bool check : {true, false}) stale_weight({.version = check});
  title("casts are recorded also under NoGrad: an evaluation comes before the training pass");
  for (const bool check : {true, false}) lost_gradient({.recorded = check});
  return after_output();
}

// Conclusion. Autocast is a table from operations to dtypes, applied to inputs, with recorded
// casts, so that backward needs nothing. The cache is correct if an entry owns its weight, compares
// storage and version, and is recorded. Neither error shows as a crash: weights are stale, or stay
// as they are. The library adds nested regions, policies, and kernels that read short floats
// directly.
//
// Exercises
// 1 (predict). Let the cache keep casts of every tensor, not only of leaves that require a
//   gradient. Which numbers change? What happens to the memory?
// 2 (implement). Task 9 of examples/exercises/: autocast and its cache on a small tape, with all traps.
// 3 (implement). Nest regions: the inner one has another dtype or is disabled, and all share one
//   cache. Which part of the key becomes necessary?
// 4 (design). Two threads run the same model at once. Which parts of this class must each of them
//   have?
