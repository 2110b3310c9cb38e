// Hidden tests of task 7. Scales are powers of two, so that the expected numbers are exact.
#include "grade.h"

#include TASK

namespace {

constexpr float inf = std::numeric_limits<float>::infinity(),
                nan32 = std::numeric_limits<float>::quiet_NaN();

Training scaled(std::vector<float> gradients, float scale = 1024) {
  Training t{.weights = std::vector<float>(gradients.size(), 1.0f),
             .gradients = std::move(gradients),
             .scale = scale};
  for (float& g : t.gradients) g *= scale;
  return t;
}
void same_list(const std::vector<float>& got, const std::vector<float>& expected,
               const char* what) {
  grade::same(int64_t(got.size()), int64_t(expected.size()), "count of numbers");
  for (std::size_t i = 0; i < got.size(); ++i) grade::same(got[i], expected[i], what);
}

}  // namespace

void grade::tests() {
  group("unscale divides once", "step_order",
        "A second division makes the step 1024 times too small. Adam hides that.", [] {
          Training t = scaled({0.5f, -0.25f, 0, 3});
          input("gradients 512, -256, 0, 3072; scale 1024");
          unscale(t);
          same_list(t.gradients, {0.5f, -0.25f, 0, 3}, "a gradient");
          same(t.unscaled, true, "unscaled"), same(t.found_inf, false, "found_inf");
          same(t.scale, 1024.0f, "scale");
          input("unscale() a second time in the same step");
          static Training again;
          again = t;
          throws([] { unscale(again); }, "the gradients are divided already");
          same_list(again.gradients, {0.5f, -0.25f, 0, 3}, "a gradient");
        });
  group("found_inf", "step_order", "One infinite or NaN gradient is enough to destroy its weight.",
        [] {
          for (const float bad : {inf, -inf, nan32})
            for (std::size_t at = 0; at < 3; ++at) {
              Training t = scaled({1, 2, 3});
              t.gradients[at] = bad;
              input("scaled gradients 1024, 2048, 3072, but number %d is %g", int(at), double(bad));
              unscale(t);
              same(t.found_inf, true, "found_inf"), same(t.unscaled, true, "unscaled");
              for (std::size_t i = 0; i < 3; ++i)
                same(t.gradients[i], i == at ? bad : float(i + 1), "a gradient");
            }
          Training t = scaled({1, 2, 3});
          t.gradients = {3e38f, 3e38f, -3e38f};
          input("gradients 3e38, 3e38, -3e38");
          unscale(t);
          same(t.found_inf, false, "found_inf");
        });
  group("clip needs gradients without the scale", "step_order",
        "The norm of scaled gradients is 1024 times too large: every step is clipped to nothing.",
        [] {
          input("clip(t, 1) before unscale()");
          static Training t;
          t = scaled({0.5f});
          throws([] { clip(t, 1); }, "the gradients are still multiplied by the scale");
          same_list(t.gradients, {512}, "a gradient");
        });
  group("clip", "step_order", "One large gradient must not turn the weights around.", [] {
    Training t = scaled({3, 4});
    unscale(t);
    input("gradients 3, 4; clip(t, 10)");
    near(clip(t, 10), 5, 1e-12, "norm"), same_list(t.gradients, {3, 4}, "a gradient");
    input("gradients 3, 4; clip(t, 5)");
    near(clip(t, 5), 5, 1e-12, "norm"), same_list(t.gradients, {3, 4}, "a gradient");
    input("gradients 3, 4; clip(t, 1)");
    near(clip(t, 1), 5, 1e-12, "norm");
    near(t.gradients[0], 0.6, 1e-6, "gradient 0"), near(t.gradients[1], 0.8, 1e-6, "gradient 1");
    Training zero = scaled({0, 0});
    unscale(zero);
    input("gradients 0, 0; clip(t, 1)");
    near(clip(zero, 1), 0, 0, "norm"), same_list(zero.gradients, {0, 0}, "a gradient");
  });
  group("the norm of very large and very small gradients", "step_order",
        "f32 squares overflow above 1.8e19 and vanish below 2.6e-23.", [] {
          for (const double size : {8e37, 1e30, 1e20, 1e-25, 1e-30}) {
            Training t{.weights = {1, 1},
                       .gradients = {float(3 * size), float(4 * size)},
                       .unscaled = true};
            input("gradients %g, %g; clip(t, %g)", 3 * size, 4 * size, size);
            near(clip(t, size), 5 * size, 1e-5 * size, "norm");
            near(t.gradients[0], 0.6 * size, 1e-5 * size, "gradient 0");
          }
          Training t = scaled({1, 2});
          t.gradients[1] = inf;
          unscale(t);
          input("gradients 1, infinity after unscale(); clip(t, 1)");
          near(clip(t, 1), inf, 0, "norm"), same(t.gradients[0], 1.0f, "gradient 0");
        });
  group("step", "step_order", "A step that forgets to divide moves the weights 1024 times too far.",
        [] {
          Training t = scaled({0.5f, -2});
          input("weights 1, 1; gradients 0.5, -2 times 1024; step(t, 0.25) without unscale()");
          same(step(t, 0.25f), true, "result");
          same_list(t.weights, {0.875f, 1.5f}, "a weight"), same(t.steps, 1, "steps");
          Training u = scaled({0.5f, -2});
          unscale(u);
          input("the same after unscale()");
          same(step(u, 0.25f), true, "result");
          same_list(u.weights, {0.875f, 1.5f}, "a weight"), same(u.scale, 1024.0f, "scale");
          input("step(t, 0.25) a second time in the same step, as with two optimizers");
          same(step(u, 0.25f), true, "result");
          same_list(u.weights, {0.75f, 2.0f}, "a weight"), same(u.steps, 2, "steps");
          Random random{7};
          for (int i = 0; i < 100; ++i) {
            const float w = random.spread(-2, 2), g = random.spread(-2, 2), product = 0.1f * g;
            Training v{.weights = {w}, .gradients = {g}, .unscaled = true};
            input("weight %.9g, gradient %.9g; step(t, 0.1)", double(w), double(g));
            step(v, 0.1f), same(v.weights[0], w - product, "the weight in f32");
          }
        });
  group("a step that overflowed is skipped", "step_order",
        "Infinity in a gradient is NaN in a weight, and NaN never leaves.", [] {
          for (const bool early : {false, true}) {
            Training t = scaled({0.5f, -2});
            t.gradients[0] = inf, t.steps = 7;
            if (early) unscale(t);
            input("weights 1, 1; one gradient is infinite; step() %s unscale()",
                  early ? "after" : "without");
            same(step(t, 0.25f), false, "result");
            same_list(t.weights, {1, 1}, "a weight"), same(t.steps, 7, "steps");
            same(t.scale, 1024.0f, "scale");
          }
        });
  group(
      "update begins the next step", "step_order",
      "If the flag of an overflow survives, every later step is skipped and the scale falls to 0. "
      "If the flag of unscale() survives, the next gradients are never divided.",
      [] {
        Training t = scaled({0.5f});
        t.gradients[0] = nan32, t.scale = 1;  // a scale below 1 is right
        for (int i = 0; i < 6; ++i) {
          input("step %d of: overflow, clean, clean, overflow, clean, clean", i);
          const bool bad = i % 3 == 0;
          t.gradients = {bad ? nan32 : 0.5f * t.scale};
          if (i % 2 == 0) unscale(t);
          same(step(t, 0.25f), !bad, "result of step()");
          const float before = t.scale;
          const std::vector<float> gradients = t.gradients;
          update(t);
          same_list(t.gradients, gradients, "a gradient after update()");
          same(t.scale, bad ? before / 2 : before, "scale");
          same(t.found_inf, false, "found_inf"), same(t.unscaled, false, "unscaled");
        }
        same_list(t.weights, {0.5f}, "the weight after four clean steps"),
            same(t.steps, 4, "steps");
      });
}
