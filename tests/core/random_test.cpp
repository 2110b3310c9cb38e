// Philox 4x32-10 against the known answers of its authors, and the generators built on it.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <thread>
#include <vector>

#include <omp.h>

#include <halftone/core/backend.h>
#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/core/random.h>

namespace halftone::test::random_test {
namespace {

using Words = std::array<uint32_t, 4>;

/// The published algorithm with all 128 bits of the counter (halftone's leaves the upper 64 at 0).
Words philox(Words c, std::array<uint32_t, 2> k) {
  for (int round = 0; round < 10; ++round) {
    if (round > 0) k[0] += 0x9E3779B9, k[1] += 0xBB67AE85;
    const uint64_t p0 = uint64_t(0xD2511F53) * c[0], p1 = uint64_t(0xCD9E8D57) * c[2];
    c = {uint32_t(p1 >> 32) ^ c[1] ^ k[0], uint32_t(p1), uint32_t(p0 >> 32) ^ c[3] ^ k[1],
         uint32_t(p0)};
  }
  return c;
}

struct Moments {
  double mean = 0, variance = 0, skewness = 0, kurtosis = 0, low = 0, high = 0;
};
Moments moments_of(const Tensor& x) {
  const std::vector<double> values = x.to_vector<double>();
  Moments m;
  const double n = double(values.size());
  for (const double v : values) m.mean += v / n;
  for (const double v : values) m.variance += (v - m.mean) * (v - m.mean) / n;
  for (const double v : values) {
    const double z = (v - m.mean) / std::sqrt(m.variance);
    m.skewness += z * z * z / n, m.kurtosis += z * z * z * z / n;
  }
  const auto [low, high] = std::ranges::minmax(values);
  m.low = low, m.high = high;
  return m;
}

constexpr int64_t many = 200'000;
const double root = std::sqrt(double(many));

TEST_CASE("no integer is below 0") {
  Generator generator(1);
  CHECK_THROWS_WITH_AS(generator.below(0),
                       "[Generator.below] no integer is below 0. Pass a bound of 1 or more.",
                       UsageError);
  CHECK(generator.below(1) == 0);
}

}  // namespace

TEST_CASE("Philox: the known answers of Random123") {
  CHECK(Philox::words(0, 0) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  // The others count beyond 64 bits: they check the reference, and the reference checks halftone's.
  CHECK(philox({}, {}) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}) ==
        Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
  uint64_t seed = 1, counter = ~uint64_t(0);
  for (int i = 0; i < 1000; ++i) {
    CHECK(Philox::words(seed, counter) == philox({uint32_t(counter), uint32_t(counter >> 32), 0, 0},
                                                 {uint32_t(seed), uint32_t(seed >> 32)}));
    seed = seed * 6364136223846793005u + 1442695040888963407u,
    counter = counter * 2862933555777941757u + 3037000493u;
  }
}

TEST_CASE("words to floats on [0, 1)") {
  CHECK(Philox::uniform(0) == 0.0f);
  CHECK(Philox::uniform(~0u) == 1 - 0x1p-24f);
  CHECK(Philox::uniform(0x80000000u) == 0.5f);
}

TEST_CASE("a generator returns disjoint ranges, and repeats from a state") {
  Generator generator(42);
  const RandomKey a = generator.reserve(5), b = generator.reserve(1), c = generator.reserve(0),
                  d = generator.reserve(4);
  CHECK(a.seed == 42);
  CHECK(a.offset == 0);
  CHECK(b.offset == 2);  // four numbers per counter
  CHECK(c.offset == 3);
  CHECK(d.offset == 3);
  CHECK(generator.state().offset == 4);
  const RandomKey state = generator.state();
  Generator copy = generator;
  const uint64_t first = generator.next(), second = generator.next();
  CHECK(first != second);
  CHECK(copy.next() == first);
  generator.set_state(state);
  CHECK(generator.next() == first);
  CHECK(generator.next() == second);
  CHECK(Generator(42).next() != Generator(43).next());
}

TEST_CASE("below() covers its range evenly") {
  Generator generator(1);
  CHECK(generator.below(1) == 0);
  std::array<int, 7> counts{};
  constexpr int draws = 70'000;
  for (int i = 0; i < draws; ++i) ++counts.at(generator.below(7));
  double chi_squared = 0;
  for (const int count : counts)
    chi_squared += (count - draws / 7.0) * (count - draws / 7.0) / (draws / 7.0);
  CHECK(chi_squared < 38);  // six degrees of freedom: once in a million
  // With a bound of 3 * 2^62 a plain remainder would fall into the lower third twice as often as
  // elsewhere.
  int lower = 0;
  for (int i = 0; i < draws; ++i) lower += generator.below(uint64_t(3) << 62) < (uint64_t(1) << 62);
  CHECK(std::abs(lower - draws / 3.0) < 5 * std::sqrt(draws * 2.0 / 9));
}

TEST_CASE("uniform, normal and integer tensors") {
  manual_seed(9);
  const Moments u = moments_of(rand({many}));
  CHECK(u.low >= 0);
  CHECK(u.high < 1);
  CHECK(u.low < 20 / double(many));
  CHECK(u.high > 1 - 20 / double(many));
  CHECK(std::abs(u.mean - 0.5) < 5 * std::sqrt(1 / 12.0) / root);
  CHECK(std::abs(u.variance - 1 / 12.0) < 5 * std::sqrt(1 / 180.0) / root);
  CHECK(std::abs(u.kurtosis - 1.8) < 0.03);

  const Moments n = moments_of(randn({many}));
  CHECK(std::abs(n.mean) < 5 / root);
  CHECK(std::abs(n.variance - 1) < 5 * std::sqrt(2.0) / root);
  CHECK(std::abs(n.skewness) < 5 * std::sqrt(6.0) / root);
  CHECK(std::abs(n.kurtosis - 3) < 5 * std::sqrt(24.0) / root);
  CHECK(n.high > 4);
  CHECK(n.high < 7);
  CHECK(n.low < -4);

  const Moments i = moments_of(randint(-3, 4, {many}));
  CHECK(i.low == -3);
  CHECK(i.high == 3);
  CHECK(std::abs(i.mean) < 5 * 2 / root);
  CHECK(std::abs(i.variance - 4) < 5 * 4 / root);
  for (const DType dtype : {f64, f16, bf16}) {
    CAPTURE(name(dtype));
    const Moments short_uniform = moments_of(rand({many}, dtype));
    // Rounding to a short format may give 1, but not more.
    CHECK(short_uniform.low >= 0);
    CHECK(short_uniform.high <= 1);
    CHECK(std::abs(short_uniform.mean - 0.5) < 5 * std::sqrt(1 / 12.0) / root + epsilon(dtype));
    CHECK(std::abs(moments_of(randn({many}, dtype)).variance - 1) <
          5 * std::sqrt(2.0) / root + epsilon(dtype));
  }
}

TEST_CASE("same seed, same numbers: for any number of threads and on any CPU backend") {
  const auto draw = [] {
    manual_seed(123);
    std::vector<double> all;
    for (const Tensor& x : {rand({4099}), randn({4099}), randint(0, 1000, {4099}), rand({5}, bf16)})
      for (const double value : x.to_vector<double>()) all.push_back(value);
    return all;
  };
  const std::vector<double> expected = draw();
  CHECK(draw() == expected);
  const int threads = omp_get_max_threads();
  for (const int count : {1, 2, 5}) {
    omp_set_num_threads(count);
    CHECK(draw() == expected);
  }
  omp_set_num_threads(threads);
  const CpuBackendScope scope("reference");
  CHECK(draw() == expected);
}

TEST_CASE("element i uses word i % 4 of counter offset + i / 4") {
  manual_seed(77);
  default_generator().reserve(12);
  const std::vector<float> values = rand({11}).to_vector<float>();
  for (std::size_t i = 0; i < values.size(); ++i)
    CHECK(values[i] == Philox::uniform(Philox::words(77, 3 + i / 4)[i % 4]));
  CHECK(default_generator().state().offset == 6);
}

TEST_CASE("consecutive calls differ, and every thread has its own generator") {
  manual_seed(5);
  const std::vector<double> a = rand({100}).to_vector<double>(),
                            b = rand({100}).to_vector<double>();
  std::set<double> different(a.begin(), a.end());
  different.insert(b.begin(), b.end());
  CHECK(different.size() > 190);
  const RandomKey before = default_generator().state();
  std::thread([] { rand({100}); }).join();
  CHECK(default_generator().state().offset == before.offset);
}

}  // namespace halftone::test::random_test
