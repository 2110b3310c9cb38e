// Compiled with the project's options and run: checks that the compiler kept code that fast-math
// would delete. Each check is a pattern that loss scaling or a compensated sum relies on.
#include <cmath>
#include <cstdio>
#include <limits>
#include <vector>

namespace {

int failures = 0;

void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "lost: %s\n", what);
  ++failures;
}

bool any_not_finite(const std::vector<float>& values) {
  bool found = false;
  for (const float value : values)
    found |= !(std::fabs(value) <= std::numeric_limits<float>::max());
  return found;
}

}  // namespace

int main() {
  // volatile: the compiler cannot know the values.
  volatile float not_a_number = std::numeric_limits<float>::quiet_NaN();
  volatile float infinity = std::numeric_limits<float>::infinity();
  volatile float big = 1e8f, one = 1, negative_zero = -0.0f, ten = 10;
  const float nan_now = not_a_number, infinity_now = infinity, big_now = big, one_now = one;

  expect(nan_now != nan_now, "x != x tells NaN");
  expect(std::isnan(nan_now) && std::isinf(infinity_now), "isnan and isinf");
  expect(std::isnan(infinity_now - infinity_now), "infinity - infinity is NaN");
  expect(std::isnan(infinity_now * (0 * one_now)), "infinity * 0 is NaN");
  expect(
      any_not_finite({1, nan_now, 2}) && any_not_finite({infinity_now}) && !any_not_finite({1, 2}),
      "a vectorised search for values that are not finite");
  expect((big_now + one_now) - big_now == 0, "sums are not reordered");
  expect(std::signbit(negative_zero + negative_zero), "the sign of zero");
  expect(one_now / ten != one_now * 0.09f && one_now / ten == 0.1f, "division is exact");
  volatile float smallest = std::numeric_limits<float>::denorm_min();
  expect(smallest * one_now > 0, "subnormal numbers are not flushed to zero");
  return failures;
}
