// Optimizer kernels against their papers' formulas in double, and dropout against Philox.
#include "simd_levels.h"

#include <halftone/core/random.h>

namespace halftone::test {
namespace {

constexpr double eps = 0x1p-23;

TEST_CASE("Adam and AdamW on every instruction set") {
  Numbers numbers(30);
  const int64_t n = 131;
  const std::vector<float> g = numbers.many(n), p0 = numbers.many(n), m0 = numbers.many(n),
                           v0 = numbers.many(n, 0, 1);
  each_level([&](const simd::Kernels& k) {
    for (const bool decoupled : {false, true}) {
      INFO("decoupled ", decoupled);
      const simd::AdamNumbers u{.lr = 0.01f,
                                .beta1 = 0.9f,
                                .beta2 = 0.99f,
                                .eps = 1e-6f,
                                .weight_decay = 0.1f,
                                .rest1 = 0.1f,
                                .rest2 = 0.01f,
                                .inverse_correction1 = 1 / 0.19f,
                                .inverse_root_correction2 = 7.1f,
                                .decoupled = decoupled};
      std::vector<float> p = p0, m = m0, v = v0;
      k.adam(u, g.data(), p.data(), m.data(), v.data(), n);
      struct State {
        double p, m, v;
      };
      const auto truth = [&](std::size_t i) {
        const double gradient =
            double(g[i]) + (decoupled ? 0 : double(u.weight_decay) * double(p0[i]));
        const double first = double(u.beta1) * double(m0[i]) + double(u.rest1) * gradient;
        const double second =
            double(u.beta2) * double(v0[i]) + double(u.rest2) * gradient * gradient;
        const double decay = decoupled ? 1 - double(u.lr) * double(u.weight_decay) : 1;
        const double step =
            double(u.lr) * double(u.inverse_correction1) * first /
            (std::sqrt(second) * double(u.inverse_root_correction2) + double(u.eps));
        return State{double(p0[i]) * decay - step, first, second};
      };
      const auto near = [](std::size_t) { return 8 * eps * 4; };
      CHECK(first_beyond(
                p, [&](std::size_t i) { return truth(i).p; }, near) == "");
      CHECK(first_beyond(
                m, [&](std::size_t i) { return truth(i).m; }, near) == "");
      CHECK(first_beyond(
                v, [&](std::size_t i) { return truth(i).v; }, near) == "");
    }
  });
}

TEST_CASE("SGD with and without momentum on every instruction set") {
  Numbers numbers(31);
  const int64_t n = 77;
  const std::vector<float> g = numbers.many(n), p0 = numbers.many(n), m0 = numbers.many(n);
  each_level([&](const simd::Kernels& k) {
    for (const bool nesterov : {false, true})
      for (const bool first : {false, true}) {
        INFO("nesterov ", nesterov, ", first step ", first);
        const simd::SgdNumbers u{0.1f, 0.9f, nesterov ? 0.0f : 0.25f, 0.01f, nesterov, first};
        std::vector<float> p = p0,
                           m = first ? std::vector<float>(std::size_t(n), std::nanf("")) : m0;
        k.sgd(u, g.data(), p.data(), m.data(), n);
        const auto gradient = [&](std::size_t i) {
          return double(g[i]) + double(u.weight_decay) * double(p0[i]);
        };
        const auto momentum = [&](std::size_t i) {
          if (first) return gradient(i);
          return double(u.momentum) * double(m0[i]) + (1 - double(u.dampening)) * gradient(i);
        };
        const auto parameter = [&](std::size_t i) {
          const double step =
              nesterov ? gradient(i) + double(u.momentum) * momentum(i) : momentum(i);
          return double(p0[i]) - double(u.lr) * step;
        };
        const auto near = [](std::size_t) { return 8 * eps * 4; };
        CHECK(first_beyond(m, momentum, near) == "");
        CHECK(first_beyond(p, parameter, near) == "");
      }
    std::vector<float> p = p0;
    k.sgd({0.1f, 0, 0, 0.01f, false, false}, g.data(), p.data(), nullptr, n);
    CHECK(first_beyond(
              p,
              [&](std::size_t i) {
                return double(p0[i]) - 0.1 * (double(g[i]) + 0.01 * double(p0[i]));
              },
              [](std::size_t) { return 8 * eps * 4; }) == "");
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
}  // namespace halftone::test
