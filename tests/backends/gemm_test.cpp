// The matrix product's parts: packing into panels and the tile product on every instruction set,
// and the whole product of the chosen one, against plain loops in double.
#include <bit>
#include <cmath>
#include <vector>

#include <omp.h>

#include <doctest/doctest.h>

#include <halftone/backends/cpu/gemm_blocking.h>
#include <halftone/backends/cpu/staging.h>
#include <halftone/core/formats/sums.h>
#include <halftone/halftone.h>

#include "../support.h"
#include "backends/simd_levels.h"
#include "simd_levels.h"

namespace halftone::test::gemm_test {
namespace {

using simd::Element;
using simd::Matrix;

constexpr double eps = 0x1p-23;
int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

/// A matrix in one of the layouts of operands, with its elements in double.
struct Operand {
  int64_t rows, columns;
  bool transposed;
  Element element;
  std::vector<float> floats;
  std::vector<uint16_t> shorts;

  Operand(int64_t m, int64_t n, bool is_transposed, Element e, uint64_t seed)
      : rows(m), columns(n), transposed(is_transposed), element(e) {
    floats = Numbers(seed).many(m * n);
    if (e == Element::f32) return;
    for (float& v : floats) {
      shorts.push_back(BFloat16(v).bits);
      v = float(BFloat16::from_bits(shorts.back()));
    }
  }
  Matrix matrix() const {
    const void* data =
        element == Element::f32 ? static_cast<const void*>(floats.data()) : shorts.data();
    return {data, element, transposed ? 1 : columns, transposed ? rows : 1};
  }
  double operator()(int64_t i, int64_t j) const {
    return double(floats[std::size_t(transposed ? i + j * rows : i * columns + j)]);
  }
};

const std::vector<std::pair<bool, Element>>& layouts() {
  static const std::vector<std::pair<bool, Element>> all{
      {false, Element::f32}, {true, Element::f32}, {false, Element::bf16}, {true, Element::bf16}};
  return all;
}

/// Removes the last 16 numbers, and returns whether they are still -1.
bool untouched_end(std::vector<float>& panels) {
  int64_t same = 0;
  for (int i = 0; i < 16; ++i, panels.pop_back()) same += panels.back() == -1.0f;
  return same == 16;
}

TEST_CASE("panels hold the operand, with zeros after its edges, and nothing else") {
  each_level([](const simd::Kernels& k) {
    for (const auto& [transposed, element] : layouts())
      for (const int64_t outer : {1, 3, 16, 40})
        for (const int64_t depth : {1, 9, 16, 32, 33}) {
          INFO("transposed ", transposed, ", bf16 ", element == Element::bf16, ", ", outer, " x ",
               depth);
          const Operand a(outer, depth, transposed, element, 1),
              b(depth, outer, transposed, element, 2);
          const int64_t tm = k.tile_rows, tn = k.tile_columns;
          std::vector<float> rows(std::size_t(round_up(outer, tm) * depth + 16), -1.0f);
          std::vector<float> columns(std::size_t(round_up(outer, tn) * depth + 16), -1.0f);
          k.pack_rows(a.matrix(), outer, depth, rows.data());
          k.pack_columns(b.matrix(), depth, outer, columns.data());
          CHECK(untouched_end(rows));
          CHECK(untouched_end(columns));
          const auto in_rows = [&](std::size_t at) {
            const int64_t i = int64_t(at) / (tm * depth) * tm + int64_t(at) % tm,
                          d = int64_t(at) / tm % depth;
            return i < outer ? a(i, d) : 0;
          };
          const auto in_columns = [&](std::size_t at) {
            const int64_t j = int64_t(at) / (tn * depth) * tn + int64_t(at) % tn,
                          d = int64_t(at) / tn % depth;
            return j < outer ? b(d, j) : 0;
          };
          const auto exact = [](std::size_t) { return 0; };
          CHECK(first_beyond(rows, in_rows, exact) == "");
          CHECK(first_beyond(columns, in_columns, exact) == "");
        }
  });
}

TEST_CASE("tile products of every size write their tile and nothing else") {
  each_level([](const simd::Kernels& k) {
    const int64_t depth = 37, stride = k.tile_columns + 5;
    const Operand a(k.tile_rows, depth, false, Element::f32, 3),
        b(depth, k.tile_columns, false, Element::f32, 4);
    std::vector<float> a_panel(std::size_t(k.tile_rows * depth)),
        b_panel(std::size_t(k.tile_columns * depth));
    k.pack_rows(a.matrix(), k.tile_rows, depth, a_panel.data());
    k.pack_columns(b.matrix(), depth, k.tile_columns, b_panel.data());
    const std::vector<float> bias = Numbers(5).many(k.tile_columns);
    for (const bool with_bias : {false, true})
      for (const bool accumulate : {false, true})
        for (int64_t rows = 1; rows <= k.tile_rows; ++rows)
          for (int64_t columns = 1; columns <= k.tile_columns; ++columns) {
            const int64_t chain = columns % 2 == 0 ? 16 : depth;
            INFO(rows, " x ", columns, ", bias ", with_bias, ", accumulate ", accumulate);
            std::vector<float> c(std::size_t((k.tile_rows + 1) * stride), 0.5f);
            k.tile_product(depth, chain, a_panel.data(), b_panel.data(), k.tile_columns, rows,
                           columns, with_bias ? bias.data() : nullptr, accumulate, c.data(),
                           stride);
            const auto truth = [&](std::size_t at) {
              const int64_t i = int64_t(at) / stride, j = int64_t(at) % stride;
              if (i >= rows || j >= columns) return 0.5;
              double sum = (accumulate ? 0.5 : 0) + (with_bias ? double(bias[std::size_t(j)]) : 0);
              for (int64_t d = 0; d < depth; ++d) sum += a(i, d) * b(d, j);
              return sum;
            };
            CHECK(first_beyond(c, truth, [&](std::size_t) { return double(depth) * eps * 4; }) ==
                  "");
          }
  });
}

TEST_CASE("the whole product, over slices of depth and blocks of columns") {
  struct Sizes {
    int64_t m, n, k;
  };
  for (const Sizes s : {Sizes{1, 1, 1},
                        {5, 7, 3},
                        {1, 513, 700},
                        {513, 1, 300},
                        {100, 100, 257},
                        {64, 3100, 20},
                        {225, 150, 800},
                        {130, 1100, 390},
                        {70, 40, 2500}})
    for (const auto& [a_transposed, a_element] : layouts())
      for (const auto& [b_transposed, b_element] : layouts()) {
        INFO(s.m, " x ", s.n, " x ", s.k, ", a transposed ", a_transposed, ", b transposed ",
             b_transposed, ", bf16 ", a_element == Element::bf16, ' ', b_element == Element::bf16);
        const Operand a(s.m, s.k, a_transposed, a_element, 6),
            b(s.k, s.n, b_transposed, b_element, 7);
        const std::vector<float> bias = Numbers(8).many(s.n);
        std::vector<float> c(std::size_t(s.m * s.n), -1.0f), alone = c;
        cpu::gemm(a.matrix(), b.matrix(), s.m, s.n, s.k,
                  {.c = alone.data(), .stride = s.n, .bias = bias.data(), .parallel = false});
        for (const int count : {1, 2, 4, 7}) {  // some have more than there are blocks
          INFO(count, " threads");
          const Threads threads(count);
          cpu::gemm(a.matrix(), b.matrix(), s.m, s.n, s.k,
                    {.c = c.data(), .stride = s.n, .bias = bias.data()});
          CHECK(c == alone);
        }
        // Every element of small products; of large ones a row and a column, with the
        // corners.
        const bool all = s.m * s.n * s.k < 100'000;
        const double bound = (4 + std::sqrt(double(s.k))) * eps * 4 * std::sqrt(double(s.k));
        for (int64_t i = 0; i < s.m; ++i)
          for (int64_t j = 0; j < s.n; ++j) {
            if (!all && i != s.m - 1 && j != s.n - 1) continue;
            double sum = double(bias[std::size_t(j)]);
            for (int64_t d = 0; d < s.k; ++d) sum += a(i, d) * b(d, j);
            if (std::abs(double(c[std::size_t(i * s.n + j)]) - sum) <= bound) continue;
            FAIL_CHECK("element ", i, ", ", j, ": ", c[std::size_t(i * s.n + j)], " instead of ",
                       sum);
          }
      }
}

}  // namespace
}  // namespace halftone::test::gemm_test

// halftone's own bf16 product, on AMX or AVX512-BF16: compared with products in double, over sizes
// around the edges of tiles and the cuts of the depth, in all memory orders. Inputs are bf16, so
// their products are exact in f32; only sums and the last rounding may differ.

namespace halftone::test::bf16_gemm_test {
namespace {

using Doubles = std::vector<double>;

bool skipped() {
  if (!has_bf16_products())
    MESSAGE("skipped: no instructions for bf16 here, or HALFTONE_MAX_ISA excludes them");
  return !has_bf16_products();
}

Tensor numbers(const Shape& shape, DType dtype) {
  return cast(rand(shape, f32) * 4.0 - 2.0, dtype);
}
/// The same matrices with the memory order of their last two dimensions exchanged.
Tensor other_order(const Tensor& x) {
  const int r = x.rank();
  return transpose(contiguous(transpose(x, r - 2, r - 1)), r - 2, r - 1);
}

struct Sizes {
  int64_t m, n, k;
};

/// a b without bias, and for each element the sum of the magnitudes of its terms.
struct Truth {
  Doubles sums, magnitudes;

  Truth(const Tensor& a, const Tensor& b, const Sizes& s)
      : sums(std::size_t(s.m * s.n)), magnitudes(sums) {
    const Doubles x = a.to_vector<double>(), y = b.to_vector<double>();
    for (int64_t i = 0; i < s.m; ++i)
      for (int64_t d = 0; d < s.k; ++d)
        for (int64_t j = 0; j < s.n; ++j) {
          const double term = x[std::size_t(i * s.k + d)] * y[std::size_t(d * s.n + j)];
          sums[std::size_t(i * s.n + j)] += term;
          magnitudes[std::size_t(i * s.n + j)] += std::abs(term);
        }
  }
};

simd::Matrix matrix_of(const Tensor& x) {
  return {x.raw_data(), simd::Element::bf16, x.strides()[0], x.strides()[1]};
}

/// Matrices use the product itself; batches, and depths that are too large for a product in bf16,
/// use the backend.
void multiply(const Tensor& a, const Tensor& b, const Tensor& bias, Tensor& c) {
  const int64_t k = a.size(-1);
  if (c.rank() == 3 || (c.dtype() == bf16 && k > cpu::bf16_depth))
    return backend_for(c).matmul(a, b, bias, c);
  const Tensor row = bias.defined() ? cast(bias, f32) : Tensor();
  cpu::bf16_gemm(matrix_of(a), matrix_of(b), c.size(0), c.size(1), k,
                 {.c = c.raw_data(),
                  .bf16 = c.dtype() == bf16,
                  .stride = c.size(1),
                  .bias = row.defined() ? row.data<float>() : nullptr});
}

Doubles product(const Tensor& a, const Tensor& b, const Tensor& bias, const Shape& shape,
                DType dtype, int threads) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(threads);
  Tensor c = full(shape, -7, dtype);
  multiply(a, b, bias, c);
  omp_set_num_threads(before);
  return c.to_vector<double>();
}

/// The elements that differ more from the truth than sums in f32 and the rounding to `dtype` allow.
int64_t count_wrong(const Doubles& got, const Truth& truth, const Doubles& bias, const Sizes& s,
                    DType dtype) {
  const double sum_eps = 0x1p-24 * double(s.k + 2), last_eps = dtype == bf16 ? 0x1p-8 : 0x1p-24;
  int64_t wrong = 0;
  for (std::size_t at = 0; at < got.size(); ++at) {
    const double added = bias.empty() ? 0 : bias[at % std::size_t(s.n)];
    const double wanted = truth.sums[at] + added;
    const double sum_bound = sum_eps * (truth.magnitudes[at] + std::abs(added));
    const double bound = sum_bound + last_eps * (std::abs(wanted) + sum_bound);
    wrong += !(std::abs(got[at] - wanted) <= bound);  // so that NaN is wrong
  }
  return wrong;
}

void check(const Sizes& s) {
  manual_seed(uint64_t(s.m * 1'000'000 + s.n * 1000 + s.k));
  const Tensor a = numbers({s.m, s.k}, bf16), b = numbers({s.k, s.n}, bf16);
  const Truth truth(a, b, s);
  for (const Tensor& x : {a, other_order(a)})
    for (const Tensor& y : {b, other_order(b)})
      for (const Tensor& bias : {Tensor(), numbers({s.n}, f32), numbers({s.n}, bf16)})
        for (const DType dtype : {f32, bf16}) {
          INFO(s.m, " x ", s.k, " by ", s.k, " x ", s.n, ", strides ", x.strides()[0], ' ',
               y.strides()[0], ", bias ", bias.defined() ? std::string(name(bias.dtype())) : "none",
               ", to ", std::string(name(dtype)));
          const Doubles one = product(x, y, bias, {s.m, s.n}, dtype, 1);
          const Doubles added = bias.defined() ? bias.to_vector<double>() : Doubles{};
          CHECK(count_wrong(one, truth, added, s, dtype) == 0);
          CHECK(one == product(x, y, bias, {s.m, s.n}, dtype, 2));
        }
}

TEST_CASE("own bf16 products: sizes around the edges of tiles") {
  if (skipped()) return;
  const CpuBackendScope scope("cpu");
  for (const int64_t m : {1, 2, 15, 16, 17, 31, 33, 64, 100})
    for (const int64_t n : {1, 2, 15, 16, 17, 31, 33, 64, 100})
      for (const int64_t k : {1, 2, 15, 17, 31, 33, 64, 101}) check({m, n, k});
}

TEST_CASE("own bf16 products: slices and chunks of the depth, blocks of c, several threads") {
  if (skipped()) return;
  const CpuBackendScope scope("cpu");
  for (const Sizes s : {Sizes{70, 40, 700},
                        {33, 65, 1500},
                        {20, 130, 4100},
                        {5, 1100, 37},
                        {300, 300, 33},
                        {130, 600, 1100},
                        {48, 128, 256},
                        // Rows that are used in place, and rows that would conflict in a cache.
                        {100, 200, 384},
                        {72, 130, 1536},
                        {96, 160, 2048},
                        // More blocks of columns than threads, whose threads pack the rows
                        // together.
                        {130, 1100, 2200}})
    check(s);
}

TEST_CASE("own bf16 products: batches, also with one matrix for all of them") {
  if (skipped()) return;
  const CpuBackendScope scope("cpu");
  const Sizes s{33, 18, 41};
  const int64_t batches = 5;
  const Tensor a = numbers({batches, s.m, s.k}, bf16), b = numbers({1, s.k, s.n}, bf16);
  const Tensor standing = expand(b, {batches, s.k, s.n});
  const Tensor bias;
  for (const Tensor& x : {a, other_order(a)})
    for (const int threads : {1, 2}) {
      const Doubles all = product(x, standing, bias, {batches, s.m, s.n}, f32, threads);
      for (int64_t i = 0; i < batches; ++i) {
        const Truth truth(contiguous(slice(a, 0, i, i + 1)), b, s);
        const auto from = all.begin() + i * s.m * s.n;
        CHECK(count_wrong(Doubles(from, from + s.m * s.n), truth, {}, s, f32) == 0);
      }
    }
}

TEST_CASE("own bf16 products: infinities stay in their rows, subnormal sums are not flushed") {
  if (skipped()) return;
  const CpuBackendScope scope("cpu");
  const Tensor b = ones({40, 20}, bf16), bias = full({20}, 0x1p-130, f32);
  Tensor a = zeros({20, 40}, bf16);
  Tensor last = slice(slice(a, 0, 3, 4), 1, 39, 40);
  backend_for(a).fill(INFINITY, last);
  const Doubles c = product(a, b, bias, {20, 20}, bf16, 1);
  for (std::size_t i = 0; i < c.size(); ++i) CHECK(c[i] == (i / 20 == 3 ? INFINITY : 0x1p-130));
}

}  // namespace

}  // namespace halftone::test::bf16_gemm_test

// Products that add up on a grid: every backend's bits against a loop written here, layouts and
// dtypes, and the effect of a short accumulator on long sums.

namespace halftone::test::accumulators_test {
namespace {

/// c = a b + bias, accumulated as core/formats/number_format.h describes.
std::vector<float> summed(const Accumulator& accumulator, const Tensor& a, const Tensor& b,
                          const Tensor& bias) {
  const int64_t m = a.size(0), k = a.size(1), n = b.size(1);
  const std::vector<float> left = a.to_vector<float>(), right = b.to_vector<float>();
  const int64_t chunk = accumulator.chunk > 0 ? accumulator.chunk : k;
  std::vector<float> c;
  for (int64_t i = 0; i < m * n; ++i) {
    volatile float total = 0;
    for (int64_t first = 0; first < k; first += chunk) {
      volatile float sum = 0;
      for (int64_t p = first; p < std::min(k, first + chunk); ++p) {
        const volatile float product =
            left[std::size_t(i / n * k + p)] * right[std::size_t(p * n + i % n)];
        const volatile float longer = sum + product;
        sum = round_to(accumulator.grid, longer, accumulator.rounding);
      }
      total = total + sum;
    }
    if (bias.defined()) total = total + bias.to_vector<float>()[std::size_t(i % n)];
    c.push_back(float(total));
  }
  return c;
}

TEST_CASE("accumulators: sums are rounded to the grid term by term, on every backend") {
  Numbers numbers(14);
  const Tensor a = from_vector(numbers.many(5 * 70), {5, 70}),
               b = from_vector(numbers.many(70 * 300), {70, 300});
  const Tensor bias = from_vector(numbers.many(300), {300});
  for (const char* format : {"f16", "bf16", "e8m13", "e4m3", "f32"})
    for (const Rounding rounding :
         {Rounding::nearest_even, Rounding::toward_zero, Rounding::to_odd, Rounding::up})
      for (const int chunk : {0, 1, 16, 32}) {
        const Accumulator accumulator{*number_format_named(format), rounding, chunk};
        INFO(std::string(format), ", chunk ", chunk);
        const std::vector<float> wanted = summed(accumulator, a, b, bias);
        for (const std::string_view backend : {"reference", "cpu"}) {
          const CpuBackendScope scope(backend);
          Tensor c = empty({5, 300});
          backend_for(c).matmul_accumulating(a, b, bias, accumulator, c);
          CHECK(bits_of(c) == bits_of(wanted));
        }
      }
}

TEST_CASE("accumulators: batches, transposed and short operands") {
  Numbers numbers(15);
  const Tensor a = cast(from_vector(numbers.many(3 * 4 * 20), {3, 4, 20}), bf16);
  const Tensor b =
      views::transpose(cast(from_vector(numbers.many(3 * 6 * 20), {3, 6, 20}), bf16), 1, 2);
  const Accumulator accumulator{formats::f16, Rounding::nearest_even, 8};
  for (const DType dtype : {bf16, f32}) {
    std::vector<std::vector<uint32_t>> results;
    for (const std::string_view backend : {"reference", "cpu"}) {
      const CpuBackendScope scope(backend);
      Tensor c = empty({3, 4, 6}, dtype);
      backend_for(c).matmul_accumulating(a, b, {}, accumulator, c);
      results.push_back(bits_of(c));
    }
    CHECK(results[0] == results[1]);
    Tensor one = empty({4, 6}, dtype);
    const Tensor a1 =
        views::contiguous(cast(views::reshaped(views::slice(a, 0, 1, 1), {4, 20}), f32));
    const Tensor b1 =
        views::contiguous(cast(views::reshaped(views::slice(b, 0, 1, 1), {20, 6}), f32));
    const std::vector<float> wanted =
        cast(from_vector(summed(accumulator, a1, b1, {}), {4, 6}), dtype).to_vector<float>();
    const std::vector<uint32_t> second(results[0].begin() + 24, results[0].begin() + 48);
    CHECK(second == bits_of(wanted));
  }
}

/// Numbers with few significand bits whose exponents are spread over `range` around `middle`; every
/// seventh is 0.
Tensor spread(Numbers& numbers, Shape shape, const NumberFormat& format, int range, int middle) {
  Tensor x = empty(shape);
  const std::vector<float> significands = numbers.many(x.numel()),
                           exponents = numbers.many(x.numel());
  for (int64_t i = 0; i < x.numel(); ++i) {
    const float rounded = round_to(format, significands[std::size_t(i)], Rounding::toward_zero);
    const int exponent = middle + int(std::lround(exponents[std::size_t(i)] * float(range) / 2));
    x.data<float>()[i] = i % 7 == 3 ? 0.0f : std::ldexp(rounded, exponent);
  }
  return x;
}

TEST_CASE("accumulators: f32 multiplies operands of few bits, with the same bits") {
  Numbers numbers(17);
  sums::Extent of_a, of_b;
  int64_t in_floats = 0, others = 0;
  const auto check = [&](const Accumulator& unit, const Tensor& a, const Tensor& b) {
    std::vector<std::vector<uint32_t>> results;
    for (const std::string_view backend : {"reference", "cpu"}) {
      const CpuBackendScope scope(backend);
      Tensor c = empty({a.size(0), b.size(1)});
      backend_for(c).matmul_accumulating(a, b, {}, unit, c);
      results.push_back(bits_of(c));
    }
    CHECK(results[0] == results[1]);
    of_a = of_b = {};
    for (const float x : a.to_vector<float>()) of_a.add(x);
    for (const float x : b.to_vector<float>()) of_b.add(x);
    const bool fit = sums::adds_in_floats(unit) && sums::fit_floats(unit, of_a, of_b);
    ++(fit ? in_floats : others);
    return fit;
  };
  const int64_t m = 3, k = 131, n = 150;
  for (const NamedAccumulator& machine : named_accumulators())
    for (const NumberFormat& format : {formats::e4m3, formats::e5m2, formats::bf16, formats::f16})
      for (const auto& [range, middle] :
           {std::pair(4, 0), {24, -20}, {24, -44}, {50, 0}, {8, 26}}) {
        Accumulator unit = machine.accumulator;
        if ((unit.align != Align::largest && unit.align != Align::apart) || unit.scaled > 0)
          continue;
        INFO(std::string(machine.name), " ", described(format), ", 2^", middle, " +- ", range / 2);
        const Tensor a = spread(numbers, {m, k}, format, range, middle);
        const Tensor b = spread(numbers, {k, n}, format, range, middle);
        check(unit, a, b);
        unit.chunk = 2 * unit.fused, unit.least_exponent = -6;
        check(unit, a, b);
      }
  CHECK(in_floats > 70);
  CHECK(others > 100);

  const Tensor a = spread(numbers, {m, k}, formats::bf16, 8, 0);
  const Tensor b = spread(numbers, {k, n}, formats::bf16, 8, 0);
  for (const Rounding rounding : {Rounding::nearest_even, Rounding::nearest_away, Rounding::to_odd})
    for (const NumberFormat& grid : {formats::f32, *number_format_named("e8m13"), formats::f16})
      for (const int32_t fraction : {1, 13, 24, 25}) {
        INFO(described(grid), ' ', std::string(name(rounding)), ' ', fraction);
        const Accumulator of{.grid = grid, .rounding = rounding, .fused = 32, .fraction = fraction};
        CHECK(check(of, a, b) == (grid.max > 0x1p100));  // f16 may become infinite
      }
  const Accumulator unit{.grid = formats::f32, .fused = 16};
  const auto with = [&](float x) {
    Tensor changed = views::contiguous(a).clone();
    changed.data<float>()[5] = x;
    return check(unit, changed, b);
  };
  CHECK(with(1.0078125f));
  CHECK(with(-0.0f));
  for (const float x : {std::numeric_limits<float>::infinity(), -0x1p127f, 0x1p80f, 0x1p-110f,
                        0x1p-130f, std::numeric_limits<float>::quiet_NaN(), 1 + 0x1p-20f})
    CHECK_FALSE(with(x));
  // The product of a 0 decides where the others are cut.
  Tensor small = full({1, 16}, 0x1.02p-61f), mixed = full({16, n}, 0x1.fep-38f);
  small.data<float>()[0] = 0;
  std::fill_n(mixed.data<float>(), n, 0x1p30f);
  CHECK_FALSE(check({.grid = formats::f32, .fused = 16, .fraction = 13}, small, mixed));
  // The largest products of a step, all positive: int32 holds 16 of them.
  for (const float most : {0x1.fep0f, -0x1.fep0f}) {
    const Tensor large = full({1, 64}, most), other = full({64, n}, 0x1.fep0f);
    CHECK(check({.grid = formats::f32, .rounding = Rounding::toward_zero, .fused = 64}, large,
                other));
  }
  CHECK(check(unit, zeros({m, k}), b));
  // Rounded up, a sum of two bits doubles until it is infinite.
  const Accumulator outward{
      .grid = *number_format_named("e8m1"), .rounding = Rounding::up, .fused = 4};
  CHECK_FALSE(check(outward, ones({1, 1024}), ones({1024, n})));
}

/// The limit of long sums (experiment E8): the relative error of a sum of 4096 positive terms.
TEST_CASE("accumulators: long sums of positive numbers") {
  Numbers numbers(16);
  const int64_t k = 4096;
  const Tensor a = from_vector(numbers.many(k * 4, 0, 1), {4, k}),
               b = from_vector(numbers.many(k * 8, 0, 1), {k, 8});
  const std::vector<float> left = a.to_vector<float>(), right = b.to_vector<float>();
  const auto error = [&](const Accumulator& accumulator) {
    Tensor c = empty({4, 8});
    backend_for(c).matmul_accumulating(a, b, {}, accumulator, c);
    const std::vector<double> got = c.to_vector<double>();
    double total = 0;
    for (int64_t i = 0; i < 32; ++i) {
      double exact = 0;
      for (int64_t p = 0; p < k; ++p)
        exact +=
            double(left[std::size_t(i / 8 * k + p)]) * double(right[std::size_t(p * 8 + i % 8)]);
      total += std::abs(got[std::size_t(i)] / exact - 1) / 32;
    }
    return total;
  };
  const double in_f32 = error({formats::f32}), in_f16 = error({formats::f16}),
               in_bf16 = error({formats::bf16}),
               chunked = error({*number_format_named("e8m13"), Rounding::nearest_even, 128});
  MESSAGE("f32 ", in_f32, ", 14 bits in chunks of 128 ", chunked, ", f16 ", in_f16, ", bf16 ",
          in_bf16);
  CHECK(in_f32 < 2e-6);
  CHECK(chunked < 1e-4);
  CHECK(in_f16 > 100 * chunked);
  CHECK(in_bf16 > 5 * in_f16);
}

}  // namespace
}  // namespace halftone::test::accumulators_test
