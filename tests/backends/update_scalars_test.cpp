// The scalars on the device that an update reads: whether to skip, the learning rate, the number of
// steps. For every optimizer and form of weights, on both CPU backends.
#include <doctest/doctest.h>

#include <cstring>
#include <limits>
#include <random>
#include <string>

#include <halftone/autograd/ops.h>
#include <halftone/core/backend.h>
#include <halftone/core/factory.h>

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
