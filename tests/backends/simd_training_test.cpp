// Optimizer kernels compared with their papers' formulas in double, and dropout with Philox.
#include "simd_levels.h"

#include <array>
#include <cmath>
#include <cstring>

#include <halftone/core/random.h>

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
