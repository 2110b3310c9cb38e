// Hidden tests of task 6. The oracle keeps a history of steps and exponents, and no state.
#include "grade.h"

#include TASK

namespace {

std::string shown(const ScalerState& s) {
  char text[80];
  std::snprintf(text, sizeof text, "{%g, %lld}", double(s.scale),
                static_cast<long long>(s.clean_steps));
  return text;
}

void check(ScalerState now, bool found_inf, const ScalerRules& rules, ScalerState expected) {
  grade::input("next(%s, found_inf = %s, growth_interval = %lld, scale from %g to %g)",
               shown(now).c_str(), found_inf ? "true" : "false",
               static_cast<long long>(rules.growth_interval), double(rules.min_scale),
               double(rules.max_scale));
  const ScalerState got = next(now, found_inf, rules);
  if (got.scale != expected.scale || got.clean_steps != expected.clean_steps)
    grade::fail(shown(expected), shown(got));
}

}  // namespace

void grade::tests() {
  group("the example of task.h", "loss_scaler", "Backs off at once, grows slowly.", [] {
    const ScalerRules rules{.growth_interval = 3};
    check({1024, 0}, false, rules, {1024, 1}), check({1024, 1}, false, rules, {1024, 2});
    check({1024, 2}, false, rules, {2048, 0}), check({2048, 0}, true, rules, {1024, 0});
    check({1024, 0}, false, rules, {1024, 1});
  });
  group("it grows after an interval only", "loss_scaler",
        "A scale that grows in every step overflows in every second one.", [] {
          for (int64_t clean = 0; clean < 2000; ++clean)
            check({65536, clean}, false, {},
                  clean < 1999 ? ScalerState{65536, clean + 1} : ScalerState{131072, 0});
          check({65536, 5000}, false, {}, {131072, 0});  // the interval was made shorter
          check({8, 0}, false, {.growth_interval = 1}, {16, 0});
          const int64_t many = 5'000'000'000;  // more than an int holds
          check({8, many}, false, {.growth_interval = many + 2}, {8, many + 1});
          check({8, many + 1}, false, {.growth_interval = many + 2}, {16, 0});
        });
  group("an overflow starts the count again", "loss_scaler",
        "Without that the scale grows soon after it backed off, and overflows again.", [] {
          for (const int64_t clean : {0, 1, 1998, 1999})
            check({65536, clean}, true, {}, {32768, 0});
        });
  group("the scale has a floor", "loss_scaler",
        "A run of overflows halves the scale to 0. Then every gradient is 0 or NaN forever.", [] {
          check({2, 7}, true, {}, {1, 0}), check({1, 7}, true, {}, {1, 0});
          check({0x1p-126f, 0}, true, {.min_scale = 0x1p-126f}, {0x1p-126f, 0});
          check({10, 0}, true, {.backoff_factor = 0.01f, .min_scale = 4}, {4, 0});
        });
  group("the scale has a ceiling", "loss_scaler",
        "A loss whose gradients are 0 never overflows; the scale doubles until it is infinite.",
        [] {
          check({0x1p24f, 1999}, false, {}, {0x1p24f, 0}),
              check({0x1p23f, 1999}, false, {}, {0x1p24f, 0});
          check({5000, 1999}, false, {.max_scale = 6000}, {6000, 0});
          const float largest = std::numeric_limits<float>::max();
          check({0x1p127f, 1999}, false, {.max_scale = largest}, {largest, 0});
        });
  group("other factors", "loss_scaler", "Factors are options in every framework.", [] {
    check({1000, 9}, false, {.growth_factor = 1.5f, .growth_interval = 10}, {1500, 0});
    check({1000, 9}, true, {.backoff_factor = 0.25f, .growth_interval = 10}, {250, 0});
  });
  group("10000 random steps", "loss_scaler",
        "The state after many steps is that of a list of events.", [] {
          const ScalerRules rules{
              .growth_interval = 20, .min_scale = 0x1p-3f, .max_scale = 0x1p10f};
          Random random{8};
          ScalerState state{16, 0};
          int exponent = 4;
          int64_t last_event = -1;
          for (int64_t step = 0; step < 10000; ++step) {
            // The larger the scale, the more overflows.
            const bool found_inf =
                random.uniform() < std::ldexp(1.0, exponent - 10) || (step % 5000) < 20;
            const bool grows = !found_inf && step - last_event == 20;
            if (found_inf) exponent = std::max(-3, exponent - 1);
            if (grows) exponent = std::min(10, exponent + 1);
            if (found_inf || grows) last_event = step;
            const ScalerState expected{std::ldexp(1.0f, exponent), step - last_event};
            check(state, found_inf, rules, expected);
            state = expected;
          }
        });
}
