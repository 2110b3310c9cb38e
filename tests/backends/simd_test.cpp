// bf16 and f16 on every instruction set: widening over all 65536 patterns, rounding over every
// value, every midpoint and its neighbors, compared with the conversions of core/dtype.h.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include <doctest/doctest.h>

#include <halftone/halftone.h>

#include "simd_levels.h"
#include "support.h"

namespace halftone::test::simd_conversions_test {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

/// A short format with its kernels, and its conversions one by one, which tests/core/dtype_test.cpp
/// checks.
struct Format {
  int fraction_bits;
  void (*simd::Kernels::*widen)(const uint16_t*, float*, int64_t);
  void (*simd::Kernels::*narrow)(const float*, uint16_t*, int64_t);
  float (*value)(uint16_t bits);
  uint16_t (*nearest)(float x);
};
template <class T> float value_of(uint16_t bits) { return float(T::from_bits(bits)); }
template <class T> uint16_t nearest_to(float x) { return T(x).bits; }

const Format bf16_format{7, &simd::Kernels::widen_bf16, &simd::Kernels::narrow_bf16,
                         &value_of<BFloat16>, &nearest_to<BFloat16>};
const Format f16_format{10, &simd::Kernels::widen_f16, &simd::Kernels::narrow_f16,
                        &value_of<Float16>, &nearest_to<Float16>};

void check_widening(const Format& format) {
  std::vector<uint16_t> patterns(65536);
  for (std::size_t i = 0; i < patterns.size(); ++i) patterns[i] = uint16_t(i);
  each_level([&](const simd::Kernels& k) {
    std::vector<float> wide(patterns.size());
    (k.*format.widen)(patterns.data(), wide.data(), int64_t(wide.size()));
    int wrong = 0;
    for (std::size_t i = 0; i < wide.size(); ++i) {
      const float truth = format.value(patterns[i]);
      const bool same_sign = std::signbit(wide[i]) == ((patterns[i] & 0x8000) != 0);
      wrong += std::isnan(truth) ? !std::isnan(wide[i]) : !(wide[i] == truth && same_sign);
    }
    CHECK(wrong == 0);
  });
}

/// All values of the format, the midpoints between them, their neighbors, and random floats.
std::vector<float> floats_to_round(const Format& format) {
  std::vector<float> x;
  std::vector<double> values;
  for (uint16_t bits = 0; std::isfinite(format.value(bits)); ++bits)
    values.push_back(double(format.value(bits)));
  values.push_back(2 * values.back() - values[values.size() - 2]);  // where the next would be
  for (std::size_t i = 0; i + 1 < values.size(); ++i) {
    const auto middle = float((values[i] + values[i + 1]) / 2);
    for (const float v :
         {float(values[i]), middle, std::nextafter(middle, 0.0f), std::nextafter(middle, infinity)})
      x.push_back(v), x.push_back(-v);
  }
  x.insert(x.end(), {infinity, -infinity, std::numeric_limits<float>::max(),
                     std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::min(),
                     0.0f, -0.0f});
  Numbers numbers(1);
  while (x.size() < 1'500'000) {
    const float any = std::bit_cast<float>(uint32_t(numbers.word()));
    if (!std::isnan(any)) x.push_back(any);
    x.push_back(std::bit_cast<float>(uint32_t(numbers.word()) & 0x807fffffu));  // subnormal floats
  }
  return x;
}

void check_rounding(const Format& format) {
  const std::vector<float> x = floats_to_round(format);
  each_level([&](const simd::Kernels& k) {
    std::vector<uint16_t> narrow(x.size());
    (k.*format.narrow)(x.data(), narrow.data(), int64_t(x.size()));
    int wrong = 0;
    std::size_t first = 0;
    for (std::size_t i = 0; i < x.size(); ++i)
      if (narrow[i] != format.nearest(x[i]) && wrong++ == 0) first = i;
    CHECK_MESSAGE(wrong == 0, "first: ", x[first], " gives ", narrow[first], " instead of ",
                  format.nearest(x[first]));
  });
}

void check_nan(const Format& format) {
  std::vector<float> x;
  for (const uint32_t bits :
       {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffc01234u, 0x7f80ffffu})
    for (int i = 0; i < 5; ++i)
      x.push_back(std::bit_cast<float>(bits));  // enough for a whole vector
  each_level([&](const simd::Kernels& k) {
    std::vector<uint16_t> narrow(x.size());
    (k.*format.narrow)(x.data(), narrow.data(), int64_t(x.size()));
    for (std::size_t i = 0; i < x.size(); ++i) {
      CHECK(std::isnan(format.value(narrow[i])));
      CHECK(((narrow[i] & 0x8000) != 0) == std::signbit(x[i]));
      CHECK((narrow[i] & (1 << (format.fraction_bits - 1))) != 0);  // quiet
    }
  });
}

/// Any number of elements from any address; nothing after the end is written.
void check_edges(const Format& format) {
  Numbers numbers(2);
  const std::vector<float> x = numbers.many(4200, -100, 100);
  each_level([&](const simd::Kernels& k) {
    for (const int64_t n : lengths()) {
      if (n > 4100) continue;
      for (const int64_t start : {0, 1, 3}) {
        std::vector<uint16_t> narrow(std::size_t(n) + 8, 0xabcd);
        (k.*format.narrow)(x.data() + start, narrow.data() + start, n);
        std::vector<float> wide(std::size_t(n) + 8, -7.0f);
        (k.*format.widen)(narrow.data() + start, wide.data() + start, n);
        bool right = true;
        for (std::size_t i = 0; i < narrow.size(); ++i) {
          const bool inside = int64_t(i) >= start && int64_t(i) < start + n;
          right = right && narrow[i] == (inside ? format.nearest(x[i]) : 0xabcd);
          right = right && wide[i] == (inside ? format.value(narrow[i]) : -7.0f);
        }
        CHECK_MESSAGE(right, n, " elements from ", start);
      }
    }
  });
}

TEST_CASE("bf16 widens exactly, all patterns") { check_widening(bf16_format); }
TEST_CASE("f16 widens exactly, all patterns") { check_widening(f16_format); }
TEST_CASE("floats round to the nearest bf16, ties to even") { check_rounding(bf16_format); }
TEST_CASE("floats round to the nearest f16, ties to even") { check_rounding(f16_format); }
TEST_CASE("NaN stays NaN, with its sign, and becomes quiet") {
  check_nan(bf16_format);
  check_nan(f16_format);
}
TEST_CASE("conversions of any length touch nothing else") {
  check_edges(bf16_format);
  check_edges(f16_format);
}

}  // namespace
}  // namespace halftone::test::simd_conversions_test

// Weight forms and the check of scaled gradients on every instruction set: forms against
// the scalar functions of core/update_rules.h, bit for bit.

namespace halftone::test::simd_forms_test {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

/// Arbitrary bits, including subnormals, infinities and NaN.
std::vector<float> any_floats(uint64_t seed, int64_t count) {
  Numbers numbers(seed);
  std::vector<float> values{0.0f, -0.0f, infinity, -infinity, std::nanf(""), 1e-40f, -3e38f};
  while (int64_t(values.size()) < count)
    values.push_back(std::bit_cast<float>(uint32_t(numbers.word())));
  return values;
}

TEST_CASE("halves of floats, cut off and rounded, on every instruction set") {
  const std::vector<float> x = any_floats(50, 5000);
  each_level([&](const simd::Kernels& k) {
    for (const bool rounded : {false, true})
      for (const int64_t n : {0, 1, 7, 16, 33, 1000, 4999}) {
        INFO(n, " elements, rounded ", rounded);
        const WeightForm form = rounded ? WeightForm::split_rounded : WeightForm::split;
        std::vector<uint16_t> upper(x.size(), 9);
        std::vector<int16_t> lower(x.size(), 9);
        std::vector<float> back(x.size(), 9);
        k.encode_halves(form, x.data(), upper.data(), lower.data(), n);
        k.decode_halves(form, upper.data(), lower.data(), back.data(), n);
        bool right = upper[std::size_t(n)] == 9 && lower[std::size_t(n)] == 9;
        for (std::size_t i = 0; i < std::size_t(n); ++i) {
          const auto bits = std::bit_cast<uint32_t>(x[i]);
          const auto top = uint16_t((bits >> 16) + (rounded ? bits >> 15 & 1 : 0));
          right = right && upper[i] == top && lower[i] == int16_t(bits) &&
                  std::bit_cast<uint32_t>(back[i]) == bits;
        }
        CHECK(right);
        CHECK(back[std::size_t(n)] == 9.0f);
      }
  });
}

TEST_CASE("stochastic rounding starts anywhere in its stream") {
  const std::vector<float> x = any_floats(51, 1200);
  each_level([&](const simd::Kernels& k) {
    for (const RandomKey key : {RandomKey{5, 0}, RandomKey{6, 0xfffffffau}})
      for (const uint64_t first : {0u, 1u, 2u, 7u, 8u, 1024u, 1001u})
        for (const int64_t n : {1, 2, 5, 64, 300, 1199}) {
          std::vector<uint16_t> random(x.size(), 9);
          std::vector<float> y(x.size(), 9);
          k.random_halves(key, first, random.data(), n);
          k.encode(WeightForm::stochastic, x.data(), random.data(), y.data(), nullptr, n);
          bool right = random[std::size_t(n)] == 9 && y[std::size_t(n)] == 9;
          for (std::size_t i = 0; i < std::size_t(n); ++i) {
            const uint16_t half = random_half(key, first + i);
            const float wanted = float(round_stochastically(x[i], half));
            right = right && random[i] == half &&
                    std::bit_cast<uint32_t>(y[i]) == std::bit_cast<uint32_t>(wanted);
          }
          CHECK_MESSAGE(right, n, " elements from ", first, ", counters from ", key.offset);
        }
  });
}

TEST_CASE("one infinity or NaN is found at every position") {
  each_level([&](const simd::Kernels& k) {
    for (const int64_t n : {1, 7, 16, 100})
      for (const float bad : {infinity, -infinity, std::nanf(""), 3e38f})
        for (int64_t place = 0; place < n; ++place) {
          std::vector<float> x(std::size_t(n) + 1, 1.5f), y(std::size_t(n) + 1, 9.0f);
          x[std::size_t(place)] = bad;
          x.back() = infinity;
          CHECK(k.unscale(x.data(), 2, nullptr, n) == (bad == 3e38f));
          CHECK(k.unscale(x.data(), 2, y.data(), n) == (bad == 3e38f));
          if (n > 1) CHECK(y[std::size_t((place + 1) % n)] == 3.0f);
          CHECK(y.back() == 9.0f);
        }
    CHECK(k.unscale(nullptr, 2, nullptr, 0));
  });
}

}  // namespace
}  // namespace halftone::test::simd_forms_test

// Optimizer kernels compared with their papers' formulas in double, and dropout with Philox.

namespace halftone::test::simd_training_test {
namespace {

constexpr double eps = 0x1p-23;

template <class Rule> simd::UpdateNumbers numbers_of(const Rule& rule, double lr, int64_t before) {
  simd::UpdateNumbers u{.rule = index_of<Rule, UpdateRules>, .states = rule.states()};
  const auto numbers = rule.template numbers<float>(lr, before);
  std::memcpy(u.numbers, &numbers, sizeof numbers);
  return u;
}

using Floats = std::vector<float>;
/// One step of every element by the kernel, and by a formula in double of gradient, weight and
/// states.
struct Element {
  double g, p;
  std::array<double, 3> s;
};
template <class Rule, class Formula>
void check_rule(const simd::Kernels& k, const Rule& rule, double lr, int64_t before,
                const Formula& formula) {
  Numbers numbers(30);
  const int64_t n = 131;
  const Floats g = numbers.many(n), p0 = numbers.many(n);
  const std::array<Floats, 3> s0{numbers.many(n, 0.5, 1), numbers.many(n, 0.5, 1),
                                 numbers.many(n, 0.1, 0.2)};
  Floats p = p0;
  std::array<Floats, 3> s = s0;
  float* states[3]{};
  for (std::size_t i = 0; i < 3; ++i)
    if (rule.states() >> i & 1) states[i] = s[i].data();
  k.update(numbers_of(rule, lr, before), g.data(), p.data(), states, n);
  const auto wanted = [&](std::size_t i) {
    Element e{g[i], p0[i], {s0[0][i], s0[1][i], s0[2][i]}};
    formula(e);
    return e;
  };
  const auto near = [](std::size_t) { return 64 * eps; };
  CHECK(first_beyond(
            p, [&](std::size_t i) { return wanted(i).p; }, near) == "");
  for (std::size_t t = 0; t < 3; ++t) {
    INFO("state ", t);
    CHECK(first_beyond(
              s[t], [&](std::size_t i) { return wanted(i).s[t]; }, near) == "");
  }
}

TEST_CASE("Adam and AdamW on every instruction set") {
  each_level([&](const simd::Kernels& k) {
    for (const bool decoupled : {false, true})
      for (const bool amsgrad : {false, true}) {
        INFO("decoupled ", decoupled, ", amsgrad ", amsgrad);
        const rule::Adam adam{0.9, 0.99, 1e-6, 0.1, decoupled, amsgrad};
        check_rule(k, adam, 0.01, 1, [&](Element& e) {
          const double g = e.g + (decoupled ? 0 : 0.1 * e.p);
          e.s[0] = 0.9 * e.s[0] + 0.1 * g;
          e.s[1] = 0.99 * e.s[1] + 0.01 * g * g;
          if (amsgrad) e.s[2] = std::max(e.s[2], e.s[1]);
          const double v = (amsgrad ? e.s[2] : e.s[1]) / (1 - 0.99 * 0.99);
          if (decoupled) e.p *= 1 - 0.01 * 0.1;
          e.p -= 0.01 * e.s[0] / (1 - 0.9 * 0.9) / (std::sqrt(v) + 1e-6);
        });
      }
  });
}

TEST_CASE("SGD with and without momentum on every instruction set") {
  each_level([&](const simd::Kernels& k) {
    for (const double momentum : {0.0, 0.9})
      for (const bool nesterov : {false, true})
        for (const bool first : {false, true}) {
          INFO("momentum ", momentum, ", nesterov ", nesterov, ", first step ", first);
          const double dampening = nesterov ? 0 : 0.25;
          check_rule(k, rule::Sgd{momentum, dampening, 0.01, nesterov}, 0.1, first ? 0 : 1,
                     [&](Element& e) {
                       const double g = e.g + 0.01 * e.p;
                       double& m = e.s[0];
                       if (momentum > 0) m = first ? g : momentum * m + (1 - dampening) * g;
                       const double step = nesterov ? g + momentum * m : m;
                       e.p -= 0.1 * (momentum > 0 ? step : g);
                     });
        }
    // The first step fills the buffer, for any earlier contents.
    float weight = 1, gradient = 0.5f, buffer = std::nanf("");
    float* states[3]{&buffer, nullptr, nullptr};
    k.update(numbers_of(rule::Sgd{.momentum = 0.9}, 0.5, 0), &gradient, &weight, states, 1);
    CHECK(buffer == 0.5f);
    CHECK(weight == 0.75f);
  });
}

TEST_CASE("Adagrad, NAdam, RAdam and Adafactor on every instruction set") {
  each_level([&](const simd::Kernels& k) {
    for (const int64_t before : {0, 3})
      check_rule(k, rule::Adagrad{0.2, 0.1, 0.3, 1e-6}, 0.01, before, [&](Element& e) {
        const double g = e.g + 0.1 * e.p;
        e.s[0] = (before == 0 ? 0.3 : e.s[0]) + g * g;
        e.p -= 0.01 / (1 + 0.2 * double(before)) * g / (std::sqrt(e.s[0]) + 1e-6);
      });
    const auto moments = [](Element& e, bool decoupled, double decay) {
      const double g = e.g + (decoupled ? 0 : 0.1 * e.p);
      if (decoupled) e.p *= 1 - decay;
      e.s[0] = 0.9 * e.s[0] + 0.1 * g;
      e.s[1] = 0.99 * e.s[1] + 0.01 * g * g;
      return g;
    };
    for (const bool decoupled : {false, true}) {
      const rule::NAdam nadam{0.9, 0.99, 1e-6, 0.1, 0.3, decoupled};
      check_rule(k, nadam, 0.01, 1, [&](Element& e) {
        const double g = moments(e, decoupled, 0.01 * 0.1);
        const auto mu = [](int t) { return 0.9 * (1 - 0.5 * std::pow(0.96, t * 0.3)); };
        const double product = mu(1) * mu(2);
        const double own = (1 - mu(2)) / (1 - product), ahead = mu(3) / (1 - product * mu(3));
        e.p -= 0.01 * (own * g + ahead * e.s[0]) / (std::sqrt(e.s[1] / (1 - 0.99 * 0.99)) + 1e-6);
      });
      for (const int t : {2, 9})  // rho > 5 from step 6 on
        check_rule(k, rule::RAdam{0.9, 0.99, 1e-6, 0.1, decoupled}, 0.01, t - 1, [&](Element& e) {
          moments(e, decoupled, 0.01 * 0.1);
          const double power = std::pow(0.99, t), most = 2 / 0.01 - 1,
                       rho = most - 2 * t * power / (1 - power);
          const double step = 0.01 * e.s[0] / (1 - std::pow(0.9, t));
          const double r =
              std::sqrt((rho - 4) * (rho - 2) * most / ((most - 4) * (most - 2) * rho));
          CHECK((rho > 5) == (t == 9));
          e.p -= rho > 5 ? step * r * std::sqrt(1 - power) / (std::sqrt(e.s[1]) + 1e-6) : step;
        });
    }
    check_rule(k, rule::Adafactor{-0.8, 0, true}, 0.01, 3,
               [](Element& e) { e.p += std::pow(4, -0.8) * (e.g - e.p); });
    for (const double lr : {0.01, 3.0})  // at most 1 / sqrt(t)
      check_rule(k, rule::Adafactor{-0.8, 0.1, false}, lr, 3,
                 [&](Element& e) { e.p = e.p * (1 - lr * 0.1) - std::min(lr, 0.5) * e.g; });
  });
}

TEST_CASE("RMSprop, Lion and the directions of LAMB and Muon on every instruction set") {
  each_level([&](const simd::Kernels& k) {
    for (const double momentum : {0.0, 0.9})
      for (const bool centered : {false, true})
        check_rule(k, rule::Rmsprop{0.9, 1e-6, 0.1, momentum, centered}, 0.01, 3, [&](Element& e) {
          const double g = e.g + 0.1 * e.p;
          e.s[0] = 0.9 * e.s[0] + 0.1 * g * g;
          if (centered) e.s[2] = 0.9 * e.s[2] + 0.1 * g;
          const double v = e.s[0] - (centered ? e.s[2] * e.s[2] : 0);
          double step = g / (std::sqrt(v) + 1e-6);
          if (momentum > 0) step = e.s[1] = momentum * e.s[1] + step;
          e.p -= 0.01 * step;
        });
    check_rule(k, rule::Lion{0.9, 0.99, 0.1}, 0.01, 3, [](Element& e) {
      const double u = 0.9 * e.s[0] + 0.1 * e.g;
      e.p -= 0.01 * ((u > 0 ? 1 : u < 0 ? -1 : 0) + 0.1 * e.p);
      e.s[0] = 0.99 * e.s[0] + 0.01 * e.g;
    });
    check_rule(k, rule::AdamDirection{0.9, 0.99, 1e-6, 0.1}, 0.01, 1, [](Element& e) {
      e.s[0] = 0.9 * e.s[0] + 0.1 * e.g;
      e.s[1] = 0.99 * e.s[1] + 0.01 * e.g * e.g;
      e.s[2] = e.s[0] / (1 - 0.81) / (std::sqrt(e.s[1] / (1 - 0.99 * 0.99)) + 1e-6) + 0.1 * e.p;
    });
    check_rule(k, rule::MomentumDirection{0.95, true}, 0.01, 1, [](Element& e) {
      e.s[0] = 0.95 * e.s[0] + 0.05 * e.g;
      e.s[1] = 0.05 * e.g + 0.95 * e.s[0];
    });
    check_rule(k, rule::ReadWeight{}, 0.01, 1, [](Element& e) { e.s[0] = e.p; });
  });
}

TEST_CASE("dropout starts anywhere in its stream and keeps Philox's choice") {
  Numbers numbers(32);
  const std::vector<float> x = numbers.many(300);
  each_level([&](const simd::Kernels& k) {
    for (const uint64_t first : {0u, 1u, 2u, 3u, 1001u})
      for (const int64_t n : {1, 2, 5, 64, 299}) {
        std::vector<float> y(x.size(), -9.0f);
        k.dropout(x.data(), 5, first, 0.3f, 2.0f, y.data(), n);
        bool right = true;
        for (std::size_t i = 0; i < x.size(); ++i) {
          const uint64_t at = first + i;
          const bool kept = Philox::uniform(Philox::words(5, at / 4)[at % 4]) >= 0.3f;
          right = right && y[i] == (int64_t(i) >= n ? -9.0f : (kept ? 2 * x[i] : 0.0f));
        }
        CHECK_MESSAGE(right, n, " elements from ", first);
      }
  });
}

}  // namespace
}  // namespace halftone::test::simd_training_test

// Optimizer steps of the CPU backend: forms are exact, so split weights and masters agree to the
// bit; results do not depend on the number of threads. All forms compared with the reference:
// tests/kernels/update_test.cpp.

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
