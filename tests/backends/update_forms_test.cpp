// Optimizer steps of the CPU backend compared with the reference: every form of weights with every
// dtype it allows, one and two threads. Forms are exact, so split weights and masters agree to the
// bit.
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
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

using Step = std::function<void(Backend&, std::span<UpdateSlot>)>;
struct NamedStep {
  std::string name;
  Step step;
};

std::vector<NamedStep> steps() {
  const auto of = [](const UpdateRule& rule) {
    return [=](Backend& b, std::span<UpdateSlot> slots) {
      b.update(slots, {.rule = rule, .lr = 0.01, .steps = 1});
    };
  };
  const auto adam = [](bool decoupled) {
    return [=](Backend& b, std::span<UpdateSlot> slots) {
      b.update(slots,
               {.rule = rule::Adam{.beta2 = 0.99, .weight_decay = 0.1, .decoupled = decoupled},
                .lr = 0.01,
                .steps = 1});
    };
  };
  const auto sgd = [](double momentum, bool nesterov, bool first) {
    return [=](Backend& b, std::span<UpdateSlot> slots) {
      b.update(slots, {.rule = rule::Sgd{.momentum = momentum,
                                         .dampening = nesterov ? 0.0 : 0.25,
                                         .weight_decay = 0.01,
                                         .nesterov = nesterov},
                       .lr = 0.05,
                       .steps = first ? 0 : 1});
    };
  };
  const auto rmsprop = [](double momentum, bool centered) {
    return [=](Backend& b, std::span<UpdateSlot> slots) {
      b.update(slots,
               {.rule = rule::Rmsprop{.momentum = momentum, .centered = centered}, .lr = 0.01});
    };
  };
  return {{"Adam", adam(false)},
          {"AdamW", adam(true)},
          {"SGD", sgd(0, false, false)},
          {"SGD, momentum", sgd(0.9, false, false)},
          {"SGD, first step", sgd(0.9, false, true)},
          {"SGD, Nesterov", sgd(0.9, true, false)},
          {"RMSprop", rmsprop(0, false)},
          {"RMSprop, momentum", rmsprop(0.9, false)},
          {"Lion", of(rule::Lion{.weight_decay = 0.1})},
          {"LAMB's direction", of(rule::AdamDirection{.beta2 = 0.99, .weight_decay = 0.1})},
          {"Muon's direction", of(rule::MomentumDirection{})},
          {"the weight", of(rule::ReadWeight{})}};
}

/// Every combination that core/update_rules.h allows.
std::vector<Setup> setups() {
  std::vector<Setup> all;
  for (const WeightForm form :
       {WeightForm::plain, WeightForm::master, WeightForm::split, WeightForm::split_rounded,
        WeightForm::kahan, WeightForm::stochastic})
    for (const DType parameter : {f32, bf16, f16})
      for (const DType gradient : {f32, bf16, f16})
        for (const DType state : {f32, bf16, f16})
          for (const bool factor : {false, true}) {
            const bool needs_bf16 = form != WeightForm::plain && form != WeightForm::master &&
                                    form != WeightForm::kahan;
            if (!needs_bf16 || parameter == bf16)
              all.push_back({form, parameter, gradient, state, factor});
          }
  return all;
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

/// The spacing of weights in this form, if it is coarser than f32.
double weight_spacing(const Setup& s) {
  switch (s.form) {
    case WeightForm::plain:
    case WeightForm::stochastic: return epsilon(s.parameter);
    case WeightForm::kahan: return epsilon(s.parameter) * epsilon(s.parameter);
    default: return 0;
  }
}

UpdateSlot after(const NamedStep& named, const Setup& s, int64_t n) {
  UpdateSlot slot = slot_of(s, n, 5);
  named.step(backend_for(Device::cpu()), std::span(&slot, 1));
  return slot;
}
UpdateSlot after_reference(const NamedStep& named, const Setup& s, int64_t n) {
  const CpuBackendScope scope("reference");
  return after(named, s, n);
}

void check_alike(const Setup& s, const UpdateSlot& got, const UpdateSlot& wanted) {
  CHECK(difference(weights_of(got), weights_of(wanted), weight_spacing(s)) == "");
  for (std::size_t i = 0; i < 3; ++i) {
    const Tensor &state = got.state[i], &same = wanted.state[i];
    CHECK(difference(state.to_vector<double>(), same.to_vector<double>(), epsilon(s.state)) == "");
    CHECK(state.storage()->version() == same.storage()->version());
  }
  CHECK(got.parameter.storage()->version() == wanted.parameter.storage()->version());
  if (has_companion(s.form))
    CHECK(got.companion.storage()->version() == wanted.companion.storage()->version());
}

std::string described(const Setup& s) {
  return std::string(name(s.form)) + ", parameter " + std::string(name(s.parameter)) +
         ", gradient " + std::string(name(s.gradient)) + ", state " + std::string(name(s.state)) +
         (s.factor ? ", factor" : "");
}

TEST_CASE("steps of every form and dtype are the reference's") {
  for (const NamedStep& step : steps())
    for (const Setup& s : setups())
      for (const int64_t n : {1, 7, 16, 1000}) {
        INFO(step.name, ", ", described(s), ", ", n, " elements");
        check_alike(s, after(step, s, n), after_reference(step, s, n));
      }
}

TEST_CASE("large steps on one thread and on two are the reference's") {
  const int64_t n = 100003;
  for (const NamedStep& step : steps())
    for (const Setup& s : setups()) {
      if (step.name != "AdamW" && step.name != "SGD, momentum" && step.name != "SGD, Nesterov")
        continue;
      const bool typical =
          s.factor && s.gradient == s.parameter && s.state == (s.parameter == bf16 ? bf16 : f32);
      if (!typical) continue;
      INFO(step.name, ", ", described(s));
      const UpdateSlot wanted = after_reference(step, s, n);
      for (const int threads : {1, 2}) {
        const Threads now(threads);
        check_alike(s, after(step, s, n), wanted);
      }
    }
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

TEST_CASE("stochastic rounding of equal f32 results is the reference's, bit for bit") {
  // A plain step by powers of two is exact in f32, so only the rounding is left.
  const auto run = [](std::string_view backend) {
    const CpuBackendScope scope(backend);
    UpdateSlot slot = slot_of({WeightForm::stochastic, bf16, bf16, f32, false}, 5003, 3);
    backend_for(Device::cpu()).update(std::span(&slot, 1), {.rule = rule::Sgd{}, .lr = 0x1p-8});
    return slot.parameter.to_vector<double>();
  };
  CHECK(run("cpu") == run("reference"));
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

// The scalars on the device that an update reads: whether to skip, the learning rate, the number of
// steps. For every optimizer and form of weights, on both CPU backends.

namespace halftone::test::update_scalars_test {
namespace {

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
constexpr std::array forms{WeightForm::plain,         WeightForm::master, WeightForm::split,
                           WeightForm::split_rounded, WeightForm::kahan,  WeightForm::stochastic};
enum class Kind { sgd, adam, adamw, rmsprop };
constexpr std::array kinds{Kind::sgd, Kind::adam, Kind::adamw, Kind::rmsprop};

/// Three slots: one of the given form, a plain f64 one, which the CPU backend passes to the
/// reference, and a plain f32 one.
std::vector<UpdateSlot> slots_of(WeightForm form) {
  manual_seed(7);
  const auto numbers = [](DType dtype) { return cast(rand({40}) - 0.25, dtype); };
  std::vector<UpdateSlot> slots;
  for (const DType dtype : {bf16, f64, f32}) {
    UpdateSlot slot{.parameter = numbers(dtype), .gradient = numbers(dtype)};
    for (Tensor& state : slot.state) state = cast(rand({40}) + 0.5, dtype == f64 ? f64 : f32);
    if (dtype == bf16) {
      slot.form = form, slot.key = {3, 5};
      if (form == WeightForm::master) slot.companion = cast(slot.parameter, f32);
      if (form == WeightForm::kahan) slot.companion = numbers(bf16) * 0x1p-9;
      if (form == WeightForm::split || form == WeightForm::split_rounded)
        slot.companion = cast(randint(-300, 300, {40}), i16);
    }
    slots.push_back(slot);
  }
  return slots;
}

/// The arguments of an update, besides the slots.
struct Scalars {
  int64_t steps = 0;
  double lr = 0.1;
  Tensor skip{}, device_lr{};
};
void update(Kind kind, std::span<UpdateSlot> slots, const Scalars& s) {
  const UpdateRule rule =
      kind == Kind::sgd       ? UpdateRule(rule::Sgd{.momentum = 0.9, .dampening = 0.5})
      : kind == Kind::rmsprop ? UpdateRule(rule::Rmsprop{.momentum = 0.9, .centered = true})
                              : rule::Adam{.weight_decay = 0.1, .decoupled = kind == Kind::adamw};
  backend_for(Device::cpu())
      .update(
          slots,
          {.rule = rule, .lr = s.lr, .steps = s.steps, .skip = s.skip, .device_lr = s.device_lr});
}

std::vector<Tensor> tensors_of(const UpdateSlot& slot) {
  std::vector<Tensor> all{slot.parameter, slot.gradient};
  all.insert(all.end(), slot.state.begin(), slot.state.end());
  for (const Tensor& x : {slot.companion, slot.steps})
    if (x.defined()) all.push_back(x);
  return all;
}
/// Returns every byte of the slots, except those of the step counts.
std::string bytes_of(std::vector<UpdateSlot> slots) {
  std::string bytes;
  for (UpdateSlot& slot : slots) {
    slot.steps = {};
    for (const Tensor& x : tensors_of(slot))
      bytes.append(reinterpret_cast<const char*>(x.raw_data()), std::size_t(x.bytes()));
  }
  return bytes;
}
void count_on_device(std::vector<UpdateSlot>& slots, const std::vector<int64_t>& steps) {
  for (std::size_t i = 0; i < slots.size(); ++i) slots[i].steps = scalar(double(steps[i]), i64);
}

template <class Test> void everywhere(const Test& test) {
  for (const std::string_view backend : {"cpu", "reference"})
    for (const Kind kind : kinds)
      for (const WeightForm form : forms) {
        const CpuBackendScope scope(backend);
        INFO(std::string(backend), ", optimizer ", int(kind), ", ", std::string(name(form)));
        test(kind, form);
      }
}

TEST_CASE("a skipped update changes nothing: no byte, no version, no count") {
  everywhere([](Kind kind, WeightForm form) {
    for (const double skip : {1.0, -0.5, not_a_number}) {
      std::vector<UpdateSlot> slots = slots_of(form);
      count_on_device(slots, {4, 4, 4});
      const std::string before = bytes_of(slots);
      update(kind, slots, {.skip = scalar(skip)});
      CHECK(bytes_of(slots) == before);
      for (const UpdateSlot& slot : slots) {
        CHECK(slot.steps.item() == 4);
        for (const Tensor& x : tensors_of(slot)) CHECK(x.storage()->version() == 0);
      }
    }
  });
}

TEST_CASE("an update that is not skipped is the ordinary one, and counts itself") {
  everywhere([](Kind kind, WeightForm form) {
    for (const int64_t steps : {0, 1, 9}) {
      std::vector<UpdateSlot> plain = slots_of(form), slots = slots_of(form);
      const std::string before = bytes_of(slots);
      count_on_device(slots, {steps, steps, steps});
      update(kind, plain, {.steps = steps});
      update(kind, slots, {.steps = 77, .skip = zeros({})});
      CHECK(bytes_of(slots) == bytes_of(plain));
      CHECK(bytes_of(slots) != before);
      for (const UpdateSlot& slot : slots) CHECK(slot.steps.item() == double(steps + 1));
    }
  });
}

TEST_CASE("slots that have done different numbers of steps, in one call") {
  everywhere([](Kind kind, WeightForm form) {
    std::vector<UpdateSlot> together = slots_of(form), apart = slots_of(form);
    count_on_device(together, {0, 5, 2});
    update(kind, together, {});
    for (std::size_t i = 0; i < apart.size(); ++i)
      update(kind, {&apart[i], 1}, {.steps = std::array{0, 5, 2}[i]});
    CHECK(bytes_of(together) == bytes_of(apart));
    for (std::size_t i = 0; i < together.size(); ++i)
      CHECK(together[i].steps.item() == std::array{1, 6, 3}[i]);
  });
}

TEST_CASE("a rate on the device replaces lr") {
  everywhere([](Kind kind, WeightForm form) {
    std::vector<UpdateSlot> plain = slots_of(form), slots = slots_of(form), other = slots_of(form);
    update(kind, plain, {.lr = 1.0 / 3});
    update(kind, slots, {.lr = 55, .device_lr = scalar(1.0 / 3, f64)});
    update(kind, other, {.lr = 0.2});
    CHECK(bytes_of(slots) == bytes_of(plain));
    CHECK(bytes_of(slots) != bytes_of(other));
  });
}

TEST_CASE("next_loss_scale on tensors is next() on numbers, over random steps") {
  std::mt19937 random(5);
  for (int turn = 0; turn < 60; ++turn) {
    const auto pick = [&](int n) { return int(random() % unsigned(n)); };
    const LossScaleOptions options{
        .init_scale = 1024,
        .growth_factor = 1.5 + pick(3),
        .backoff_factor = 0.25 * (1 + pick(3)),
        .growth_interval = 1 + pick(4),
        .min_scale = pick(2) ? 0.5 : 0,
        .max_scale = pick(2) ? 1e6 : std::numeric_limits<double>::infinity(),
        .hysteresis = 1 + pick(3),
        .rule = HysteresisRule(pick(3)),
        .dynamic = pick(8) != 0};
    LossScale state{.options = options};
    Tensor scale = scalar(1024), tracker = zeros({}, i64);
    Tensor left = scalar(options.hysteresis, i32);
    const CpuBackendScope scope(turn % 2 == 0 ? "cpu" : "reference");
    for (int step = 0; step < 200; ++step) {
      const int kind = pick(6);  // 0: overflow, 1: found as NaN
      state = next(state, kind < 2);
      backend_for(scale).next_loss_scale(options,
                                         scalar(kind == 1   ? not_a_number
                                                : kind == 0 ? 1
                                                            : 0),
                                         scale, tracker, left);
      CHECK(scale.item() == double(state.scale));
      CHECK(tracker.item() == double(state.growth_tracker));
      CHECK(left.item() == state.overflows_left);
    }
    CHECK(scale.storage()->version() == 200);
  }
}

}  // namespace

}  // namespace halftone::test::update_scalars_test
