// The whole operation table under a real region: every operation gives the bits that it gives for
// inputs cast by hand outside. On every backend and in both short formats, as PyTorch tests its
// lists.
#include "cases.h"
#include "ops/properties.h"

namespace halftone::test::op_classes_test {
namespace {

using test::Case;
using test::OpSamples;
using test::Tensors;

bool eligible(const Tensor& x) { return x.defined() && is_floating(x.dtype()) && x.dtype() != f64; }

Tensors cast_by_hand(CastClass asked, const Tensors& inputs, DType low) {
  std::optional<DType> target;
  if (asked == CastClass::low_precision) target = low;
  if (asked == CastClass::full_precision) target = f32;
  if (asked == CastClass::widest_input)
    for (const Tensor& x : inputs)
      if (eligible(x)) target = target ? promote(*target, x.dtype()) : x.dtype();
  Tensors result;
  for (const Tensor& x : inputs) result.push_back(target && eligible(x) ? cast(x, *target) : x);
  return result;
}

/// Floating inputs of a case, the first in `first`, the others in `others`. An input that requires
/// a gradient is a leaf, so that the cache is used.
Tensors inputs_in(const Case& test, DType first, DType others) {
  Tensors inputs = test::inputs_of(test, f32);
  bool is_first = true;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!test.inputs[i].floating() || !inputs[i].defined()) continue;
    inputs[i] = cast(inputs[i], is_first ? first : others).clone();
    if (test.inputs[i].differentiable()) inputs[i].set_requires_grad();
    is_first = false;
  }
  return inputs;
}

void check_case(const OpSamples& samples, const Case& test, const Tensors& inputs, DType low) {
  const CastClass asked = amp::CastPolicy()[samples.name].cast_class;
  if (asked == CastClass::banned) {
    const amp::Autocast region(low);
    CHECK_THROWS_AS(test.call(inputs), UsageError);
    return;
  }
  const Tensor y = amp::autocast(low, [&] { return test.call(inputs); });
  const Tensor by_hand = test.call(cast_by_hand(asked, inputs, low));
  CHECK(y.dtype() == by_hand.dtype());
  CHECK(same_bits(y.detach(), by_hand.detach()));
}

TEST_CASE("every operation under autocast equals itself on inputs cast by hand") {
  const std::array<std::pair<DType, DType>, 4> mixes{
      {{f32, f32}, {bf16, f32}, {f16, f16}, {f64, f64}}};
  test::each_op([&](const OpSamples& samples) {
    if (samples.name == "checkpoint" || samples.name == "cast") return;  // no rule
    for (const test::Target& target : test::cpu_targets())
      for (const Case& test : samples.cases)
        for (const DType low : {bf16, f16})
          for (const auto& [first, others] : mixes) {
            INFO(samples.name, ", ", test.name, ", ", std::string(target.backend), ", autocast ",
                 std::string(name(low)), ", first input ", std::string(name(first)));
            const test::TargetScope scope(target);
            check_case(samples, test, inputs_in(test, first, others), low);
          }
  });
}

}  // namespace
}  // namespace halftone::test::op_classes_test
