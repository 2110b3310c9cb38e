// The grader. The tests.cpp of a task defines grade::tests(), a list of group() calls; each group
// describes its case with input(), calls the student's code, and compares with same(), near() or
// holds(). The first case that fails ends the run with a verdict.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "numbers.h"

namespace grade {

/// Runs the tests of one task. Each tests.cpp defines it.
void tests();

/// Runs one group of cases. `topic` is a key of lessons.txt: the pages that a verdict names. `why`
/// says why the case matters in a training.
void group(const char* title, const char* topic, const char* why, void (*run)());

/// Describes the case that follows, as printf does. A verdict prints it, also after a crash.
[[gnu::format(printf, 1, 2)]] void input(const char* format, ...);

/// Ends the run with a verdict: "expected" and "got".
[[noreturn]] void fail(const std::string& expected, const std::string& got);

/// Compares bits; two NaN are the same. `what` names the compared value.
void same(float got, float expected, const char* what = "");
void same_bits(uint64_t got, uint64_t expected, int digits, const char* what = "");
void same(bool got, bool expected, const char* what = "");
void same_integer(int64_t got, int64_t expected, const char* what);
template <std::integral Got, std::integral Expected>
requires(!std::same_as<Got, bool>) void same(Got got, Expected expected, const char* what = "") {
  same_integer(int64_t(got), int64_t(expected), what);
}
/// Compares within an absolute tolerance. NaN is near to NaN alone.
void near(double got, double expected, double tolerance, const char* what = "");
/// Fails unless `ok`, with a sentence for each side.
void holds(bool ok, const std::string& expected, const std::string& got);
/// Calls `run` and fails unless it throws a std::exception.
void throws(void (*run)(), const char* expected);

/// Text for expected and got: 0.1 (0x3dcccccd).
std::string shown(float x);
std::string shown(double x);

/// Pseudo-random words that depend on `seed` alone (splitmix64).
struct Random {
  uint64_t state;
  uint32_t word() {
    uint64_t z = state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9, z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return uint32_t((z ^ z >> 31) >> 32);
  }
  /// Uniform in [0, 1).
  double uniform() { return word() * 0x1p-32; }
  /// The product of a sign, a power of two from 2^low to 2^high, and a fraction in [1, 2).
  float spread(int low, int high) {
    const float size = float(std::ldexp(1 + uniform(), low + int(word() % (high - low + 1))));
    return word() & 1 ? -size : size;
  }
};

}  // namespace grade
