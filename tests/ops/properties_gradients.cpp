// Gradients of every operation: against finite differences in f64, and, in lower precision, against
// the f64 gradient at the same (rounded) point.
#include <algorithm>
#include <limits>
#include <memory>
#include <set>

#include <halftone/halftone.h>

#include "ops/properties.h"

namespace halftone::test::properties_gradients {
namespace {

constexpr double step = 1e-5;

Tensors differentiable_inputs(const Case& test) { return leaves_of(test, inputs_of(test, f64)); }

int64_t differentiable_elements(const Tensors& leaves) {
  int64_t count = 0;
  for (const Tensor& x : leaves)
    if (x.requires_grad()) count += x.numel();
  return count;
}

/// The effect of rounding on a difference quotient of the contracted result.
double quotient_noise(const Tensor& y) {
  double total = 0;
  for (const double v : y.to_vector<double>()) total += std::abs(v);
  return 8 * epsilon(f64) * (1 + total) / step;
}

double contracted(const Tensor& y, const Values& seed) {
  const Values values = y.to_vector<double>();
  double total = 0;
  for (std::size_t i = 0; i < values.size(); ++i) total += values[i] * seed[i];
  return total;
}

/// For inputs too large to probe one by one: the derivative along one random direction through all.
void check_direction(const Case& test, const Tensors& leaves) {
  const Tensor y = test.call(leaves);
  const Tensor seed = seed_for(y);
  y.backward(seed);
  const Values weights = seed.to_vector<double>();
  double analytic = 0, magnitude = 0;
  Tensors ahead, behind;
  Draw draw(11);
  for (const Tensor& leaf : leaves) {
    ahead.push_back(leaf), behind.push_back(leaf);
    if (!leaf.requires_grad()) continue;
    Values up = leaf.to_vector<double>(), down = up;
    const Values gradient = leaf.grad().to_vector<double>();
    for (std::size_t i = 0; i < up.size(); ++i) {
      const double direction = draw.word() % 2 ? 1 : -1;
      up[i] += step * direction, down[i] -= step * direction;
      analytic += gradient[i] * direction, magnitude += std::abs(gradient[i]);
    }
    ahead.back() = from_vector(up, leaf.shape(), f64, leaf.device()),
    behind.back() = from_vector(down, leaf.shape(), f64, leaf.device());
  }
  const double numeric =
      (contracted(test.call(ahead), weights) - contracted(test.call(behind), weights)) / (2 * step);
  CHECK(std::abs(numeric - analytic) <= quotient_noise(y) + 1e-7 * magnitude);
}

TEST_CASE("f64 gradients are those of finite differences") {
  constexpr std::array dtypes{f64};
  each_case(dtypes, [](const OpSamples&, const Case& test, DType) {
    if (!test.gradient || !test.smooth) return;
    const Tensors leaves = differentiable_inputs(test);
    if (differentiable_elements(leaves) > 64) return check_direction(test, leaves);
    const GradcheckOptions options{.step = step,
                                   .absolute_tolerance = quotient_noise(test.call(leaves))};
    const GradcheckResult result = gradcheck(test.call, leaves, options);
    CHECK_MESSAGE(result.passed, result.message);
  });
}

TEST_CASE(
    "gradients in lower precision are the f64 gradients, and have their input's dtype and shape") {
  constexpr std::array dtypes{f32, bf16, f16};
  each_case(dtypes, [](const OpSamples&, const Case& test, DType dtype) {
    if (!test.gradient) return;
    const Tensors inputs = inputs_of(test, dtype);
    const Outcome low = run_case(test, inputs);
    const Tensor seed = seed_for(low.y);
    // Operations with a fixed result dtype (cast) start from that dtype also in f64.
    const Outcome wide = run_case(test, widened(inputs), test.output ? seed : cast(seed, f64));
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (!test.inputs[i].differentiable()) continue;
      INFO("input ", i);
      REQUIRE(low.gradients[i].defined());
      CHECK(low.gradients[i].dtype() == inputs[i].dtype());
      CHECK(low.gradients[i].shape() == inputs[i].shape());
      CHECK(mismatch(low.gradients[i], wide.gradients[i].to_vector<double>(),
                     gradient_tolerance(test, dtype, low.y.numel())) == "");
    }
  });
}

}  // namespace
}  // namespace halftone::test::properties_gradients

// The memory layout of inputs does not matter: every operation gives the same results for permuted,
// stepped, expanded and channels-last views as for contiguous tensors of the same values.

namespace halftone::test::properties_strides {
namespace {

enum class Layout { reversed, stepped, expanded, channels_last };
constexpr std::array layouts{Layout::reversed, Layout::stepped, Layout::expanded,
                             Layout::channels_last};
constexpr std::array<const char*, 4> layout_names{"reversed", "stepped", "expanded",
                                                  "channels last"};

/// The first of dimension 0, repeated with a stride of 0.
Tensor expanded(const Tensor& x) {
  if (x.rank() == 0 || x.numel() == 0) return x;
  return views::expand(views::slice(x, 0, 0, 1), x.shape());
}

Tensor laid_out(const Tensor& x, Layout layout) {
  if (!x.defined()) return x;
  switch (layout) {
    case Layout::reversed: return reversed(x);
    case Layout::stepped: return stepped(x);
    case Layout::expanded: return expanded(x);
    default: return x.rank() == 4 ? views::channels_last(x) : x;
  }
}

void check_layout(const Case& test, const Tensors& inputs, Layout layout, DType dtype) {
  Tensors strided, contiguous;
  for (const Tensor& x : inputs) {
    strided.push_back(laid_out(x, layout));
    contiguous.push_back(x.defined() ? views::contiguous(strided.back()) : x);
  }
  const Outcome plain = run_case(test, contiguous), other = run_case(test, strided);
  // Repeated values have variance 0: the computed variance is the square of a rounding error.
  double rounding = 0;
  for (const Tensor& x : contiguous)
    if (x.defined()) rounding = std::max(rounding, largest_magnitude(x.to_vector<double>()));
  const auto tolerance = [&](Tolerance t) {
    t = twice(t);
    if (layout == Layout::expanded) t.absolute += rounding * compute_epsilon(dtype);
    return t;
  };
  REQUIRE(other.y.shape() == plain.y.shape());
  CHECK(mismatch(other.y, plain.y.to_vector<double>(), tolerance(forward_tolerance(test, dtype))) ==
        "");
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!plain.gradients[i].defined()) continue;
    INFO("gradient of input ", i);
    REQUIRE(other.gradients[i].defined());
    CHECK(mismatch(other.gradients[i], plain.gradients[i].to_vector<double>(),
                   tolerance(gradient_tolerance(test, dtype, plain.y.numel()))) == "");
  }
}

TEST_CASE("strided inputs equal contiguous ones") {
  constexpr std::array dtypes{f64, f32, bf16};
  each_case(dtypes, [](const OpSamples&, const Case& test, DType dtype) {
    if (!test.any_strides) return;
    const Tensors inputs = inputs_of(test, dtype);
    for (std::size_t l = 0; l < layouts.size(); ++l) {
      INFO("inputs ", std::string(layout_names[l]));
      check_layout(test, inputs, layouts[l], dtype);
    }
  });
}

TEST_CASE("dropout's mask follows memory order, and backward repeats it") {
  for (const Target& target : targets()) {
    const TargetScope scope(target);
    const Tensor x = views::channels_last(ones({2, 3, 4, 5}, f32, test_device())),
                 plain = ones({2, 4, 5, 3}, f32, test_device());
    Tensor leaf = x.detach().set_requires_grad();
    manual_seed(5);
    const Tensor y = dropout(leaf, 0.4);
    manual_seed(5);
    const Tensor same = dropout(plain, 0.4);
    CHECK(permute(y.detach(), {0, 2, 3, 1}).to_vector<float>() == same.to_vector<float>());
    y.backward(ones({2, 3, 4, 5}, f32, test_device()));
    CHECK(leaf.grad().to_vector<float>() == y.to_vector<float>());
  }
}

}  // namespace
}  // namespace halftone::test::properties_strides

// Cast classes, with a caster that does exactly what they ask for: an operation under it equals,
// bit for bit, the same operation on inputs cast by hand.

namespace halftone::test::properties_casts {
namespace {

class ClassCaster final : public InputCaster {
 public:
  std::set<std::string> seen;
  int calls = 0;

  CastPlan plan(const OpInfo& op, std::span<Tensor> inputs, bool has_f32_result) override {
    const bool is_short = eligible(inputs[0]) && inputs[0].dtype() != f32;
    if (op.cast_class == CastClass::full_precision && has_f32_result && is_short) {
      seen.emplace(op.name), ++calls;
      return {.f32_result = true};
    }
    cast_inputs(op, inputs);
    return {};
  }
  void cast_inputs(const OpInfo& op, std::span<Tensor> inputs) override {
    seen.emplace(op.name), ++calls;
    const Tensors replaced =
        cast_by_hand(op.cast_class, Tensors(inputs.begin(), inputs.end()), bf16);
    std::ranges::copy(replaced, inputs.begin());
  }
};

/// Returns input i of a case in dtypes[i % n]; integers and bools do not change.
Tensors mixed_inputs(const Case& test, std::span<const DType> dtypes) {
  Tensors inputs = inputs_of(test, f32);
  std::size_t next = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (test.inputs[i].floating() && inputs[i].defined())
      inputs[i] = cast(inputs[i], dtypes[next++ % dtypes.size()]);
  return inputs;
}

/// Only on the CPU. A GPU reads as many elements at a time as have 16 bytes, so sums of short
/// floats and of the same values widened run in another order: a few roundings of f32 may
/// differ.
void check_same_bits(const Tensor& a, const Tensor& b) {
  REQUIRE(a.defined() == b.defined());
  if (!a.defined()) return;
  CHECK(a.dtype() == b.dtype());
  CHECK(a.shape() == b.shape());
  const bool on_cpu = a.device().kind == DeviceKind::cpu;
  const Tolerance few{.relative = epsilon(a.dtype()), .scaled = 8 * epsilon(f32)};
  CHECK(mismatch(a.to_vector<double>(), b.to_vector<double>(), on_cpu ? Tolerance{} : few) == "");
}

/// Runs the case under a caster and by hand; the caster reports the inputs that it got.
void check_class(const OpSamples& samples, const Case& test, const Tensors& inputs,
                 ClassCaster& report) {
  const Tensors leaves = leaves_of(test, inputs), same = leaves_of(test, inputs);
  Tensor y;
  {
    const auto caster = std::make_shared<ClassCaster>();
    const CasterScope region(caster);
    y = test.call(leaves);
    const int calls = caster->calls;
    // Still in the region: backward must not consult it. A checkpoint runs its segment again.
    if (test.gradient) y.backward(seed_for(y));
    if (samples.name != "checkpoint") CHECK(caster->calls == calls);
    report.seen.merge(caster->seen);
  }
  const Tensor by_hand = test.call(cast_by_hand(samples.cast_class, same, bf16));
  if (test.gradient) by_hand.backward(seed_for(by_hand));
  check_same_bits(y, by_hand);
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    if (!test.gradient || !test.inputs[i].differentiable()) continue;
    INFO("gradient of input ", i);
    REQUIRE(leaves[i].grad().defined());
    CHECK(leaves[i].grad().dtype() == inputs[i].dtype());
    // If there is a step between the cast by hand and the operation (broadcasting, a transposed
    // view), only the caster's gradient comes directly in f32. A gradient that a widening operation
    // writes in a short float is rounded once, by hand twice.
    const bool same_roundings = samples.cast_class != CastClass::low_precision &&
                                samples.cast_class != CastClass::full_precision;
    if (test.broadcast || !same_roundings) {
      CHECK(mismatch(leaves[i].grad(), same[i].grad().to_vector<double>(),
                     gradient_tolerance(test, bf16, y.numel())) == "");
    } else {
      check_same_bits(leaves[i].grad(), same[i].grad());
    }
  }
}

TEST_CASE("the cast class is followed: as the same operation on inputs cast by hand") {
  const std::vector<std::vector<DType>> mixes{{f32}, {bf16}, {f64}, {f32, bf16}, {f16, bf16}};
  each_op([&](const OpSamples& samples) {
    ClassCaster report;
    for (const Target& target : targets())
      for (const Case& test : samples.cases)
        for (const std::vector<DType>& mix : mixes) {
          INFO(samples.name, ", ", test.name, ", ", std::string(target.backend), ", inputs of ",
               std::string(name(mix.front())), " and ", std::string(name(mix.back())));
          const TargetScope scope(target);
          check_class(samples, test, mixed_inputs(test, mix), report);
        }
    // The region's casts happen inside a checkpoint's segment, not to its inputs.
    CHECK((samples.name == "checkpoint" || report.seen.contains(samples.name)));
  });
}

/// An operation that reads the pipeline's state from inside.
struct Probe : UserOp {
  static constexpr OpInfo info{"probe", CastClass::as_is};
  bool* clean_forward = nullptr;
  bool* clean_backward = nullptr;

  Probe(bool* in_forward, bool* in_backward)
      : clean_forward(in_forward), clean_backward(in_backward) {}
  Tensor forward(const Tensor& x) {
    *clean_forward = !active_caster() && !grad_enabled() && !x.requires_grad();
    return x.clone();
  }
  std::array<Tensor, 1> backward(const Tensor& dy) const {
    *clean_backward = !active_caster() && !grad_enabled();
    return {dy};
  }
};

TEST_CASE("inside forward and backward the slot is empty and recording is off") {
  bool clean_forward = false, clean_backward = false;
  const Tensor x = ones({2}).set_requires_grad();
  const auto caster = std::make_shared<ClassCaster>();
  const CasterScope region(caster);
  const Tensor y = apply(Probe(&clean_forward, &clean_backward), x);
  CHECK(clean_forward);
  CHECK(active_caster() == caster.get());
  CHECK(grad_enabled());
  y.backward(ones({2}));
  CHECK(clean_backward);
  CHECK(active_caster() == caster.get());
  CHECK(grad_enabled());
  CHECK(caster->seen == std::set<std::string>{"probe"});
}

}  // namespace
}  // namespace halftone::test::properties_casts
