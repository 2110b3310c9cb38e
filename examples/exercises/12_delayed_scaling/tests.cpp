// Hidden tests of task 12. The oracle computes every scale again from the list of all steps.
#include "grade.h"

#include TASK

namespace {

constexpr float inf = std::numeric_limits<float>::infinity(),
                nan32 = std::numeric_limits<float>::quiet_NaN();

struct Oracle {
  std::size_t length = 16;
  std::vector<float> all{};  // the largest magnitudes of all finite steps
  float before = 1;
  float scale() {
    const std::size_t used = std::min(length, all.size());
    float largest = 0;
    for (std::size_t i = all.size() - used; i < all.size(); ++i)
      largest = std::max(largest, all[i]);
    if (largest > 0) before = std::min(57344 / largest, std::numeric_limits<float>::max());
    return before;
  }
};

/// One step of both, compared.
void check(DelayedScaling& state, Oracle& oracle, const std::vector<float>& x,
           const std::string& text) {
  const float s = oracle.scale();
  grade::input("%s, before the step", text.c_str());
  grade::same(state.scale, s, "state.scale");
  grade::input("%s", text.c_str());
  const std::vector<float> got = quantize_step(state, x);
  grade::same(got.size(), x.size(), "count of results");
  float amax = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    grade::input("%s. Gradient %d is %.9g, the scale is %.9g", text.c_str(), int(i), double(x[i]),
                 double(s));
    const float expected =
        std::isfinite(x[i]) ? numbers::rounded(x[i] * s, 3, -14, 57344) / s : x[i];
    grade::same(got[i], expected, "result");
    amax = std::isfinite(amax) && std::isfinite(x[i]) ? std::max(amax, std::fabs(x[i])) : inf;
  }
  if (std::isfinite(amax)) oracle.all.push_back(amax);
  grade::input("%s, after the step", text.c_str());
  grade::same(state.history.size(), std::min(oracle.length, oracle.all.size()),
              "entries in state.history");
  grade::same(state.scale, oracle.scale(), "state.scale");
}

std::vector<float> gradients_of(double size, uint64_t seed) {
  grade::Random random{seed};
  std::vector<float> x(40);
  for (float& y : x) y = float(size * (2 * random.uniform() - 1));
  return x;
}
/// Numbers whose products with `scale` are at `middle`, or closely above and below it.
std::vector<float> around(float middle, float scale) {
  float x = middle / scale;
  for (int i = 0; i < 3; ++i) x = std::nextafterf(x, 0);
  std::vector<float> all;
  for (int i = 0; i < 7; ++i, x = std::nextafterf(x, 1e30f)) all.push_back(x), all.push_back(-x);
  return all;
}
std::string step_text(int step, double size) {
  char text[80];
  std::snprintf(text, sizeof text, "step %d, gradients up to %g", step, size);
  return text;
}

}  // namespace

void grade::tests() {
  group("scale_for", "delayed_scaling", "57344 / 0 is infinite, and 0 times that is NaN.", [] {
    for (const float a : {1.0f, 0x1p-18f, 57344.0f, 3e38f, 1e-30f}) {
      input("scale_for(%g)", double(a));
      same(scale_for(a), 57344 / a);
    }
    for (const float a : {0.0f, inf, nan32})
      input("scale_for(%g)", double(a)), same(scale_for(a), 1.0f);
    for (const float a : {1e-37f, 0x1p-149f}) {
      input("scale_for(%g)", double(a));
      same(scale_for(a), std::numeric_limits<float>::max());
    }
  });
  group("the example of task.h", "delayed_scaling",
        "The first step has no history: its gradients underflow.", [] {
          DelayedScaling state;
          Oracle oracle;
          for (int step = 1; step <= 2; ++step)
            check(state, oracle, {0x1p-20f, -0x1p-18f}, step_text(step, 0x1p-18));
        });
  group("the scale of a step comes from earlier steps", "delayed_scaling",
        "A gradient that grows saturates for one step: its results are 57344 / scale at most. "
        "Scaling by the present tensor would need a second pass over it.",
        [] {
          DelayedScaling state;
          Oracle oracle;
          int step = 0;
          for (const double size : {1e-3, 0.1, 0.1, 5.0, 1e-3, 1e-4, 1e6, 1e30, 1e30})
            ++step, check(state, oracle, gradients_of(size, uint64_t(step)), step_text(step, size));
          DelayedScaling tiny;
          Oracle tiny_oracle;
          for (const double size : {1e-36, 10.0})  // x * s is infinite in f32
            check(tiny, tiny_oracle, gradients_of(size, 3), step_text(0, size));
          DelayedScaling resumed{.history = {1}, .scale = 8};
          input("history {1}, state.scale 8, gradient 1.375");
          same(quantize_step(resumed, std::vector<float>{1.375f})[0], 1.5f, "result");
          same(resumed.scale, 57344 / 1.375f, "state.scale");
        });
  group(
      "the product is f32", "delayed_scaling",
      "The kernel multiplies in f32; an f64 product ends on the other side of some halfway cases.",
      [] {
        Random random{4};
        for (int i = 0; i < 200; ++i) {
          DelayedScaling state{.scale = std::fabs(random.spread(-5, 10))};
          Oracle oracle{.before = state.scale};
          const float middle = i % 2 == 0 ? 0x1p-17f : 1.125f;  // halfway between two e5m2
          check(state, oracle, around(middle, state.scale), "products around a halfway case");
        }
      });
  group("the largest of the last steps, and no older ones", "delayed_scaling",
        "The latest step alone is noisy; a maximum of all steps stays after one spike.", [] {
          DelayedScaling state{.length = 4};
          Oracle oracle{.length = 4};
          int step = 0;
          for (const double size : {1.0, 100.0, 1.0, 2.0, 1.0, 0.5, 0.25, 0.25, 0.25, 0.25})
            ++step, check(state, oracle, gradients_of(size, uint64_t(step)),
                          step_text(step, size) + ", length 4");
          DelayedScaling one{.length = 1};
          Oracle one_oracle{.length = 1};
          for (const double size : {1.0, 8.0, 0.1})
            check(one, one_oracle, gradients_of(size, 9), step_text(0, size) + ", length 1");
        });
  group("infinity and NaN are not remembered", "delayed_scaling",
        "An infinite amax in the history makes the scale 1, and gradients underflow.", [] {
          for (const float bad : {inf, -inf, nan32}) {
            DelayedScaling state;
            Oracle oracle;
            for (int step = 1; step <= 4; ++step) {
              std::vector<float> x = gradients_of(0.01, uint64_t(step));
              if (step == 2) x[7] = bad;
              check(state, oracle, x,
                    step_text(step, 0.01) + (step == 2 ? ", and one that is not finite" : ""));
            }
            DelayedScaling full{.length = 2};
            Oracle full_oracle{.length = 2};
            for (const float first : {100.0f, 1.0f, bad, 1.0f})
              check(full, full_oracle, {first, 0.5f},
                    "length 2, gradients " + shown(first) + ", 0.5");
          }
        });
  group("gradients of zero", "delayed_scaling",
        "A frozen layer has them; its scale must stay usable.", [] {
          DelayedScaling state{.length = 2};
          Oracle oracle{.length = 2};
          int step = 0;
          for (const double size : {0.0, 1.0, 0.01, 0.0, 0.0, 0.0, 0.01})
            ++step, check(state, oracle, gradients_of(size, uint64_t(step)),
                          step_text(step, size) + ", length 2");
        });
  group("becomes_zero", "delayed_scaling",
        "You can count the losses of a format before you use it.", [] {
          Random random{3};
          for (int i = 0; i < 2000; ++i) {
            const float x = random.spread(-30, -10), scale = std::fabs(random.spread(-5, 10));
            for (const float y : around(0x1p-17f, scale)) {
              input("becomes_zero(%.9g, %.9g); the product in f32 is %.9g times 2^-16", double(y),
                    double(scale), double(y * scale) * 0x1p16);
              same(becomes_zero(y, scale), numbers::rounded(y * scale, 3, -14, 57344) == 0);
            }
            input("becomes_zero(%.9g, %.9g); the product in f32 is %.9g times 2^-16", double(x),
                  double(scale), double(x * scale) * 0x1p16);
            same(becomes_zero(x, scale), numbers::rounded(x * scale, 3, -14, 57344) == 0);
          }
          for (const float x : {0x1p-17f, -0x1p-17f, std::nextafterf(0x1p-17f, 1),
                                std::nextafterf(0x1p-17f, 0), 0x1p-16f}) {
            input("becomes_zero(%a, 1)", double(x));
            same(becomes_zero(x, 1), numbers::e5m2(x) == 0);
          }
        });
  group("lost_in_first_step", "delayed_scaling",
        "A loss scale, or one pass before the training that fills the history, prevents it.", [] {
          for (const double size : {1e-7, 1e-5, 1e-4, 1.0}) {
            std::vector<float> x = gradients_of(size, 77);
            x[3] = x[30] = 0;
            const auto zeros = std::count_if(
                x.begin(), x.end(), [](float y) { return y != 0 && numbers::e5m2(y) == 0; });
            input("40 gradients up to %g, two of them 0", size);
            same(lost_in_first_step(x), zeros);
          }
        });
}
