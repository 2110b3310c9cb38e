// halftone's own bf16 product, on AMX or AVX512-BF16: compared with products in double, over sizes
// around the edges of tiles and the cuts of the depth, in all memory orders. Inputs are bf16, so
// their products are exact in f32; only sums and the last rounding may differ.
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include <omp.h>

#include <halftone/autograd/ops.h>
#include <halftone/backends/cpu/gemm.h>
#include <halftone/backends/cpu/staging.h>
#include <halftone/core/backend.h>
#include <halftone/core/factory.h>

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
