// Optimizer steps of the CPU backend: forms are exact, so split weights and masters agree to the
// bit; results do not depend on the number of threads. All forms compared with the reference:
// tests/kernels/update_test.cpp.
#include <cmath>
#include <string>

#include <doctest/doctest.h>

#include <halftone/autograd/ops.h>
#include <halftone/core/backend.h>
#include <halftone/core/factory.h>

#include "support.h"

namespace halftone::test::update_forms_test {

using test::Threads;

namespace {

struct Setup {
  WeightForm form;
  DType parameter, gradient, state;
  bool factor;
};

DType companion_dtype(const Setup& s) {
  const bool is_split = s.form == WeightForm::split || s.form == WeightForm::split_rounded;
  return is_split ? i16 : (s.form == WeightForm::kahan ? s.parameter : f32);
}

bool has_companion(WeightForm form) {
  return form != WeightForm::plain && form != WeightForm::stochastic;
}

/// A slot whose companion has a value that is valid only for a weight in this form.
UpdateSlot slot_of(const Setup& s, int64_t n, uint64_t seed) {
  manual_seed(seed);
  UpdateSlot slot;
  const Tensor weight = rand({n}) * 4.0 - 2.0;
  slot.parameter = cast(weight, s.parameter);
  slot.gradient = cast(rand({n}) * 2.0 - 1.0, s.gradient);
  for (Tensor& state : slot.state) state = cast(rand({n}) * 0.5 + 0.5, s.state);
  if (s.factor) slot.gradient_factor = scalar(0.375);
  slot.form = s.form;
  if (s.form == WeightForm::master) slot.companion = weight;
  if (s.form == WeightForm::kahan) slot.companion = cast((rand({n}) - 0.5) * 0x1p-9, s.parameter);
  if (companion_dtype(s) == i16) slot.companion = cast(randint(-32768, 32768, {n}), i16);
  slot.key = {seed, 1234567};
  return slot;
}

using Values = std::vector<double>;

/// The weights as the next step reads them.
Values weights_of(const UpdateSlot& slot) {
  Values upper = slot.parameter.to_vector<double>();
  if (!has_companion(slot.form)) return upper;
  const Values rest = slot.companion.to_vector<double>();
  for (std::size_t i = 0; i < upper.size(); ++i) {
    visit_index(WeightForms{}, int(slot.form), [&]<class Form>() {
      upper[i] = double(Form::decode(float(upper[i]), float(rest[i])));
    });
  }
  return upper;
}

/// Returns the first element whose error exceeds f32 arithmetic on numbers around 2 plus a rounding
/// to another neighbor at `spacing` relatively; empty if there is none.
std::string difference(const Values& got, const Values& wanted, double spacing) {
  constexpr double computed = 0x1p-19;
  if (got.size() != wanted.size()) return "sizes differ";
  for (std::size_t i = 0; i < got.size(); ++i)
    if (!(std::abs(got[i] - wanted[i]) <= computed + spacing * std::abs(wanted[i])))
      return "element " + std::to_string(i) + ": " + std::to_string(got[i]) + " instead of " +
             std::to_string(wanted[i]);
  return {};
}

/// Does `count` steps of Adam; returns the parameter and the weights.
std::pair<Values, Values> trained(const Setup& s, int64_t n, int count, int threads) {
  const Threads now(threads);
  UpdateSlot slot = slot_of({WeightForm::master, bf16, s.gradient, s.state, false}, n, 9);
  slot.form = s.form;
  if (s.form == WeightForm::stochastic) slot.companion = {};
  if (s.form == WeightForm::kahan) slot.companion = zeros({n}, bf16);
  if (companion_dtype(s) == i16) {
    const std::vector<float> weights = slot.companion.to_vector<float>();
    slot.companion = zeros({n}, i16);
    for (int64_t i = 0; i < n; ++i) {
      const float weight = weights[std::size_t(i)];
      const bool rounds = s.form == WeightForm::split_rounded;
      const auto kept = rounds ? form::SplitRounded::encode(weight, 0.0f, 0)
                               : form::Split::encode(weight, 0.0f, 0);
      slot.parameter.data<BFloat16>()[i] = BFloat16(kept.parameter);
      slot.companion.data<int16_t>()[i] = int16_t(kept.companion);
    }
  }
  for (int i = 0; i < count; ++i) {
    slot.key.offset = uint64_t(i * n);
    backend_for(Device::cpu())
        .update(std::span(&slot, 1), {.rule = rule::Adam{}, .lr = 1e-3, .steps = 6});
  }
  return {slot.parameter.to_vector<double>(), weights_of(slot)};
}

TEST_CASE("split weights are masters, bit for bit, over 50 steps") {
  const int64_t n = 70001;
  const auto run = [&](WeightForm form, int threads) {
    return trained({form, bf16, bf16, f32, false}, n, 50, threads);
  };
  const auto [parameter, master] = run(WeightForm::master, 2);
  CHECK(run(WeightForm::split, 2).second == master);
  CHECK(run(WeightForm::split_rounded, 1).second == master);
}

TEST_CASE("compensated and stochastic steps do not depend on threads") {
  for (const WeightForm form : {WeightForm::kahan, WeightForm::stochastic}) {
    INFO(std::string(name(form)));
    const auto run = [&](int threads) {
      return trained({form, bf16, bf16, bf16, false}, 100003, 5, threads);
    };
    const auto once = run(1);
    CHECK(run(1) == once);
    CHECK(run(2) == once);
    CHECK(run(5) == once);
  }
}

TEST_CASE("layouts that differ, and lists in which the reference updates some slots") {
  const auto run = [](std::string_view backend) {
    const CpuBackendScope scope(backend);
    std::vector<UpdateSlot> slots;
    for (const DType dtype : {f32, f64, bf16})
      slots.push_back(slot_of({WeightForm::plain, dtype, dtype, dtype == f64 ? f64 : f32, false},
                              60, uint64_t(size_of(dtype))));
    slots[2].parameter = slots[2].parameter.view_as({6, 10}, {10, 1}, 0);
    slots[2].gradient = slots[2].gradient.view_as({6, 10}, {1, 6}, 0);
    for (Tensor& state : slots[2].state) state = state.view_as({6, 10}, {10, 1}, 0);
    slots.push_back(slot_of({WeightForm::split, bf16, f16, bf16, true}, 60, 4));
    for (Tensor* x : {&slots[3].parameter, &slots[3].gradient, &slots[3].companion,
                      &slots[3].state[0], &slots[3].state[1], &slots[3].state[2]})
      *x = x->view_as({3, 4, 5}, {1, 15, 3}, 0);
    backend_for(Device::cpu()).update(slots, {.rule = rule::Adam{}, .lr = 0.5, .steps = 6});
    return slots;
  };
  const std::vector<UpdateSlot> got = run("cpu"), wanted = run("reference");
  for (std::size_t i = 0; i < got.size(); ++i) {
    INFO("slot ", i);
    CHECK(difference(weights_of(got[i]), weights_of(wanted[i]), i == 2 ? 0x1p-7 : 0) == "");
    CHECK(got[i].parameter.storage()->version() == wanted[i].parameter.storage()->version());
  }
}

}  // namespace

}  // namespace halftone::test::update_forms_test
