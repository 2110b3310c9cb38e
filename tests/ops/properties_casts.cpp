// Cast classes, with a caster that does exactly what they ask for: an operation under it equals,
// bit for bit, the same operation on inputs cast by hand.
#include "ops/properties.h"

#include <algorithm>
#include <memory>
#include <set>

#include <halftone/autograd/slots.h>

namespace halftone::test::properties_casts {
namespace {

bool eligible(const Tensor& x) { return x.defined() && is_floating(x.dtype()) && x.dtype() != f64; }

/// The dtype that an input of `dtype` gets among the other inputs, by its class.
DType target_dtype(CastClass wanted, const Tensors& inputs, DType dtype) {
  if (wanted == CastClass::low_precision) return bf16;
  if (wanted == CastClass::full_precision) return f32;
  if (wanted != CastClass::widest_input) return dtype;  // a banned one: as outside of regions
  DType widest = dtype;
  for (const Tensor& x : inputs)
    if (eligible(x)) widest = promote(widest, x.dtype());
  return widest;
}

Tensors cast_by_hand(CastClass wanted, const Tensors& inputs) {
  Tensors result;
  for (const Tensor& x : inputs)
    result.push_back(eligible(x) ? cast(x, target_dtype(wanted, inputs, x.dtype())) : x);
  return result;
}

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
    const Tensors replaced = cast_by_hand(op.cast_class, Tensors(inputs.begin(), inputs.end()));
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
  const Tensor by_hand = test.call(cast_by_hand(samples.cast_class, same));
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
