// The matrix product's parts: packing into panels and the tile product on every instruction set,
// and the whole product of the chosen one, against plain loops in double.
#include "simd_levels.h"

#include <bit>

#include <halftone/backends/cpu/gemm.h>
#include <halftone/core/dtype.h>

#include "../threads.h"

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

TEST_CASE("panels hold the operand, with zeros after its edges") {
  each_level([](const simd::Kernels& k) {
    for (const auto& [transposed, element] : layouts())
      for (const int64_t outer : {1, 3, 16, 40})
        for (const int64_t depth : {1, 9, 33}) {
          INFO("transposed ", transposed, ", bf16 ", element == Element::bf16, ", ", outer, " x ",
               depth);
          const Operand a(outer, depth, transposed, element, 1),
              b(depth, outer, transposed, element, 2);
          const int64_t tm = k.tile_rows, tn = k.tile_columns;
          std::vector<float> rows(std::size_t(round_up(outer, tm) * depth), -1.0f);
          std::vector<float> columns(std::size_t(round_up(outer, tn) * depth), -1.0f);
          k.pack_rows(a.matrix(), outer, depth, rows.data());
          k.pack_columns(b.matrix(), depth, outer, columns.data());
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
