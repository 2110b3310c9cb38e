// With portable bits a sample's results do not depend on the other samples of its batch.
#include <array>
#include <bit>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <halftone/backends/cpu/gemm_blocking.h>
#include <halftone/backends/cpu/staging.h>
#include <halftone/halftone.h>

namespace halftone::test::batch_test {
namespace {

using Values = std::vector<double>;

Values values_of(const Tensor& x) { return cast(x, f64).to_vector<double>(); }

/// Checks that the first samples have the same results alone, in twos and threes as in all of
/// `batch`, in f32 and under bf16 autocast.
template <class Model> void check(Model& model, const Tensor& batch) {
  const PortableBitsScope portable(true);
  const NoGrad no_grad;
  model.eval();
  for (const bool in_bf16 : {false, true}) {
    const auto result = [&](const Tensor& x) {
      return in_bf16 ? amp::autocast(bf16, [&] { return model(x); }) : model(x);
    };
    const Tensor all = result(batch);
    for (const int64_t count : {1, 2, 3}) {
      INFO(count, " of ", batch.size(0), in_bf16 ? ", bf16" : ", f32");
      CHECK(values_of(result(slice(batch, 0, 0, count))) == values_of(slice(all, 0, 0, count)));
    }
  }
}

TEST_CASE("portable bits: a sample has the same results in any batch") {
  manual_seed(5);
  SUBCASE("mlp") {
    nn::Sequential model = nn::models::mlp({300, 128, 10});
    check(model, randn({64, 300}));
  }
  SUBCASE("lenet") {
    nn::models::LeNet model;
    check(model, randn({64, 1, 28, 28}));
  }
  SUBCASE("resnet18") {
    nn::models::ResNet model = nn::models::resnet18({.classes = 10});
    check(model, randn({16, 3, 32, 32}));
  }
  SUBCASE("gpt") {
    nn::models::Gpt model({.vocabulary = 60, .context = 40, .layers = 2, .heads = 4, .width = 96});
    check(model, randint(0, 60, {64, 40}));
  }
  SUBCASE("lstm") {
    nn::models::LstmClassifier model(60);
    check(model, randint(1, 60, {64, 20}));
  }
  SUBCASE("unet") {
    nn::models::UNet model;
    check(model, randn({8, 3, 32, 32}));
  }
}

}  // namespace
}  // namespace halftone::test::batch_test

// The specification of portable bits (docs/same_bits.md): plain loops in the order of each sum.
// Every portable table of kernels that this machine has gives their bits.

namespace halftone::test::portable_kernels_test {
namespace {

using Floats = std::vector<float>;

/// Numbers of many magnitudes, so that the order of a sum decides its last bits.
Floats numbers(int64_t n, int seed) {
  std::mt19937 random{uint32_t(seed)};
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> exponent(-12, 3);
  Floats x(std::size_t(n), 0.0f);
  for (float& v : x) v = normal(random) * std::exp2(exponent(random));
  return x;
}

uint32_t bits(float x) { return std::bit_cast<uint32_t>(x); }
bool same(const Floats& a, const Floats& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (bits(a[i]) != bits(b[i])) return false;
  return true;
}

constexpr int64_t lanes = 16;

/// Sixteen lanes in double: first those eight apart, then four, two and one.
double join(const float* sums) {
  std::array<double, 8> s{};
  for (std::size_t k = 0; k < 8; ++k) s[k] = double(sums[k]) + double(sums[k + 8]);
  for (std::size_t distance : {4, 2, 1})
    for (std::size_t k = 0; k < distance; ++k) s[k] = s[k] + s[k + distance];
  return s[0];
}

/// The sum of term(0), ..., term(n - 1): blocks of 1024; in a block 32 chains in float, the last
/// 16 to 31 terms in the first 16 of them, fewer than 16 in double.
template <class Term> double total(int64_t n, const Term& term) {
  double result = 0;
  for (int64_t begin = 0; begin < n; begin += 1024) {
    const int64_t end = std::min(n, begin + 1024);
    std::array<float, 2 * lanes> sums{};
    int64_t i = begin;
    for (; i + 2 * lanes <= end; i += 2 * lanes)
      for (int64_t k = 0; k < 2 * lanes; ++k) sums[std::size_t(k)] += term(i + k);
    for (; i + lanes <= end; i += lanes)
      for (int64_t k = 0; k < lanes; ++k) sums[std::size_t(k)] += term(i + k);
    double rest = 0;
    for (; i < end; ++i) rest += double(term(i));
    std::array<float, lanes> both{};
    for (std::size_t k = 0; k < lanes; ++k) both[k] = sums[k] + sums[k + lanes];
    result += rest + join(both.data());
  }
  return result;
}

/// Calls check(table) for every portable table of this machine.
template <class Check> void each_table(const Check& check) {
  const auto tables = portable_simd_kernels();
  REQUIRE(!tables.empty());
  for (const simd::Kernels* table : tables) {
    INFO(table->name);
    check(*table);
  }
}

constexpr std::array<int64_t, 9> lengths{1, 7, 16, 31, 33, 100, 1000, 1025, 5000};

TEST_CASE("portable sums along a row have 32 chains in blocks of 1024") {
  each_table([](const simd::Kernels& k) {
    for (const int64_t n : lengths) {
      INFO("n = ", n);
      const Floats x = numbers(n, 1), y = numbers(n, 2);
      const auto at = [](const Floats& v, int64_t i) { return v[std::size_t(i)]; };
      const float dot = float(total(n, [&](int64_t i) { return at(x, i) * at(y, i); }));
      CHECK(bits(k.dot(x.data(), y.data(), n)) == bits(dot));
      float mean;
      double variance;
      k.moments(x.data(), n, &mean, &variance);
      const auto m = float(total(n, [&](int64_t i) { return at(x, i); }) / double(n));
      const auto v =
          float(total(n, [&](int64_t i) { return (at(x, i) - m) * (at(x, i) - m); }) / double(n));
      CHECK(bits(mean) == bits(m));
      CHECK(variance == double(v));
      float shift;
      float top = x[0];
      for (const float value : x) top = std::max(top, value);
      const float sum = float(total(n, [&](int64_t i) { return math::exp(at(x, i) - top); }));
      CHECK(bits(k.exp_sum(x.data(), n, &shift)) == bits(sum));
      CHECK(bits(shift) == bits(top));
      Floats soft(x.size()), expected(x.size());
      k.softmax(x.data(), n, false, soft.data());
      for (std::size_t i = 0; i < x.size(); ++i) expected[i] = math::exp(x[i] - top);
      const auto inverse = float(1 / total(n, [&](int64_t i) { return at(expected, i); }));
      for (float& e : expected) e *= inverse;
      CHECK(same(soft, expected));
    }
  });
}

TEST_CASE("portable elementwise kernels round every product and sum") {
  each_table([](const simd::Kernels& k) {
    const Floats a = numbers(1000, 3), b = numbers(1000, 4);
    Floats y = b, expected = b;
    k.lerp(a.data(), 0.3f, y.data(), 1000);
    for (std::size_t i = 0; i < y.size(); ++i) {
      const float difference = a[i] - expected[i], product = 0.3f * difference;
      expected[i] = expected[i] + product;
    }
    CHECK(same(y, expected));
    k.normalize(a.data(), 0.1f, 1.7f, b.data(), a.data(), y.data(), 1000);
    for (std::size_t i = 0; i < y.size(); ++i) {
      const float centred = a[i] - 0.1f, scaled = centred * 1.7f, weighted = scaled * b[i];
      expected[i] = weighted + a[i];
    }
    CHECK(same(y, expected));
  });
}

TEST_CASE("portable sums over rows have chains of even and odd rows, sixteen rows at a time") {
  each_table([](const simd::Kernels& k) {
    const int64_t rows = 37, n = 40;
    const Floats x = numbers(rows * n, 5), mean = numbers(n, 6);
    std::vector<double> sum(n), squares(n), expected_sum(n), expected_squares(n);
    k.channel_moments(x.data(), mean.data(), rows, n, sum.data(), squares.data());
    for (int64_t first = 0; first < rows; first += 16)
      for (int64_t j = 0; j < n; ++j) {
        const bool in_float = j < n / lanes * lanes;  // the rest is added in double
        std::array<float, 2> s{}, q{};
        std::array<double, 2> ds{}, dq{};
        for (int64_t i = first; i < std::min(rows, first + 16); ++i) {
          const auto way = std::size_t((i - first) % 2);
          const float value = x[std::size_t(i * n + j)], m = mean[std::size_t(j)];
          if (in_float) {
            const float d = value - m, square = d * d;
            s[way] += d, q[way] += square;
          } else {
            const double d = double(value) - double(m);
            ds[way] += d, dq[way] += d * d;
          }
        }
        expected_sum[std::size_t(j)] += in_float ? double(s[0] + s[1]) : ds[0] + ds[1];
        expected_squares[std::size_t(j)] += in_float ? double(q[0] + q[1]) : dq[0] + dq[1];
      }
    CHECK(sum == expected_sum);
    CHECK(squares == expected_squares);
  });
}

/// One element of a product: a chain of fused multiply-adds for each slice of the depth.
float element(const Floats& a, const Floats& b, int64_t i, int64_t j, int64_t n, int64_t k,
              int64_t slice) {
  float result = 0;
  for (int64_t first = 0; first < k; first += slice) {
    float chain = 0;
    for (int64_t d = first; d < std::min(k, first + slice); ++d)
      chain = std::fma(a[std::size_t(i * k + d)], b[std::size_t(d * n + j)], chain);
    result = first == 0 ? chain : chain + result;
  }
  return result;
}

TEST_CASE("portable products are chains of fused multiply-adds") {
  each_table([](const simd::Kernels& k) {
    const int64_t m = k.tile_rows + 1, n = k.tile_columns + 3, depth = 300;
    Floats a = numbers(m * depth, 7), b = numbers(depth * n, 8);
    a[5] = 1e-30f, b[std::size_t(5 * n)] = 1e-12f;     // their product is subnormal
    a[7] = 3e38f, b[std::size_t(7 * n + 1)] = 1e-38f;  // and this one is not
    const simd::Matrix am{a.data(), simd::Element::f32, depth, 1},
        bm{b.data(), simd::Element::f32, n, 1};
    Floats rows(std::size_t(2 * k.tile_rows * depth)),
        columns(std::size_t(2 * k.tile_columns * depth));
    k.pack_rows(am, m, depth, rows.data());
    k.pack_columns(bm, depth, n, columns.data());
    Floats c(std::size_t(m * n)), expected(c.size());
    for (int64_t i = 0; i < m; i += k.tile_rows)
      for (int64_t j = 0; j < n; j += k.tile_columns)
        k.tile_product(depth, depth, rows.data() + i * depth, columns.data() + j * depth,
                       k.tile_columns, std::min<int64_t>(k.tile_rows, m - i),
                       std::min<int64_t>(k.tile_columns, n - j), nullptr, false,
                       c.data() + i * n + j, n);
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j)
        expected[std::size_t(i * n + j)] = element(a, b, i, j, n, depth, depth);
    CHECK(same(c, expected));
  });
}

TEST_CASE("portable products cut the depth into equal slices of at most 384, whatever the rows") {
  const PortableBitsScope scope(true);
  for (const int64_t k : {5, 384, 385, 1000})
    for (const int64_t m : {1, 3, 40}) {
      INFO("k = ", k, ", m = ", m);
      const int64_t n = 50, pieces = (k + 383) / 384,
                    slice = ((k + pieces - 1) / pieces + 15) / 16 * 16;
      const Floats a = numbers(m * k, 9), b = numbers(k * n, 10);
      Floats c(std::size_t(m * n)), expected(c.size());
      cpu::gemm({a.data(), simd::Element::f32, k, 1}, {b.data(), simd::Element::f32, n, 1}, m, n, k,
                {.c = c.data(), .stride = n});
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j)
          expected[std::size_t(i * n + j)] = element(a, b, i, j, n, k, slice);
      CHECK(same(c, expected));
    }
}

}  // namespace
}  // namespace halftone::test::portable_kernels_test
