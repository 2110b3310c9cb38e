// Samples of the matrix products: sizes around the edges of tiles, batches, views.
#pragma once

#include "ops/samples_case.h"

namespace halftone::test {

/// c[.., i, j] = sum_p a[.., i, p] b[.., p, j] with broadcast batches, for ranks of 2 and more.
inline Array product_of(const Array& a, const Array& b, const Shape& result) {
  const int64_t k = a.size(a.shape.rank() - 1);
  return array_of(result, [&](const Dims& index) {
    Dims at = index, bt = index;
    double sum = 0;
    const int r = index.rank();
    // One more index than a broadcast read has: the summed one replaces a column or a row.
    for (int64_t p = 0; p < k; ++p) {
      at[r - 1] = p, bt[r - 2] = p;
      sum += a.broadcast(at) * b.broadcast(bt);
    }
    return sum;
  });
}

template <> struct Samples<Matmul> {
  static Case of(std::string name, const Shape& a, const Shape& b, const Shape& c) {
    return {.name = std::move(name),
            .inputs = {{.shape = a}, {.shape = b}},
            .call = [](const Tensors& in) { return matmul(in[0], in[1]); },
            .oracle = [c](const Arrays& in) { return product_of(in[0], in[1], c); },
            .reduced = a[a.rank() - 1]};
  }
  /// Shapes [m, k] and [k, n], either one stored transposed.
  static Case transposed(std::string name, bool a_too) {
    Case test = of(std::move(name), {5, 7}, {7, 9}, {5, 9});
    test.inputs[1].shape = {9, 7};
    if (a_too) test.inputs[0].shape = {7, 5};
    test.call = [=](const Tensors& in) {
      return matmul(a_too ? transpose(in[0], 0, 1) : in[0], transpose(in[1], 0, 1));
    };
    test.oracle = [=](const Arrays& in) {
      return array_of({5, 9}, [&](const Dims& i) {
        double sum = 0;
        for (int64_t p = 0; p < 7; ++p)
          sum += (a_too ? in[0](p, i[0]) : in[0](i[0], p)) * in[1](i[1], p);
        return sum;
      });
    };
    return test;
  }
  static Case broadcast(Case test) {
    test.broadcast = true;
    return test;
  }
  static Case with_vector(std::string name, const Shape& a, const Shape& b, const Shape& c) {
    Case test = of(std::move(name), a, b, c);
    test.oracle = [=](const Arrays& in) {
      const bool row = a.rank() == 1, column = b.rank() == 1;
      const Array left(row ? Shape{1, a[0]} : a, in[0].values);
      const Array right(column ? Shape{b[0], 1} : b, in[1].values);
      Shape full = c;
      if (row) full.insert(column ? full.rank() : full.rank() - 1, 1);
      if (column) full.push_back(1);
      return Array(c, product_of(left, right, full).values);
    };
    return test;
  }
  static OpSamples make() {
    return {
        .cases = {of("ones", {1, 1}, {1, 1}, {1, 1}),
                  of("small", {2, 3}, {3, 4}, {2, 4}),
                  of("odd", {15, 33}, {33, 17}, {15, 17}),
                  of("one row", {1, 40}, {40, 33}, {1, 33}),
                  of("one column", {33, 40}, {40, 1}, {33, 1}),
                  of("depth one", {9, 1}, {1, 9}, {9, 9}),
                  of("over the tiles' edges", {64, 70}, {70, 300}, {64, 300}),
                  of("deeper than a slice", {3, 521}, {521, 5}, {3, 5}),
                  of("batch", {3, 4, 5}, {3, 5, 6}, {3, 4, 6}),
                  of("batch of one", {1, 4, 5}, {1, 5, 6}, {1, 4, 6}),
                  of("one matrix for a batch", {3, 4, 5}, {5, 6}, {3, 4, 6}),
                  broadcast(of("broadcast on the left", {4, 5}, {3, 5, 6}, {3, 4, 6})),
                  broadcast(of("broadcast both", {2, 1, 3, 4}, {3, 4, 5}, {2, 3, 3, 5})),
                  of("two batches", {2, 3, 2, 4}, {2, 3, 4, 2}, {2, 3, 2, 2}),
                  with_vector("vector by vector", {6}, {6}, {}),
                  with_vector("matrix by vector", {4, 6}, {6}, {4}),
                  with_vector("vector by matrix", {6}, {6, 4}, {4}),
                  broadcast(with_vector("vector by batch", {6}, {2, 6, 4}, {2, 4})),
                  transposed("b transposed", false),
                  transposed("both transposed", true),
                  of("no rows", {0, 3}, {3, 4}, {0, 4}),
                  of("no depth", {2, 0}, {0, 3}, {2, 3})},
        .errors = {error<ShapeError>(
                       "[matmul] inner sizes differ: a is [32, 784] f32, b is [256, 10] f32; "
                       "a.size(-1) must equal b.size(-2).",
                       [] {
                         matmul(ones({32, 784}), ones({256, 10}));
                       }),
                   error<ShapeError>(
                       "[matmul] a is [] f32, b is [2] f32; scalars have no product. Use mul().",
                       [] { matmul(ones({}), ones({2})); }),
                   error<ShapeError>(
                       "[matmul] shapes do not broadcast: [2] and [3] differ in dimension 0.",
                       [] {
                         matmul(ones({2, 3, 4}), ones({3, 4, 5}));
                       }),
                   error<DTypeError>(
                       "[matmul] dtypes differ: [2, 3] f32 and [3, 2] bf16. Cast one of them, or "
                       "run under autocast.",
                       [] {
                         matmul(ones({2, 3}), ones({3, 2}, bf16));
                       })},
        .mixed = Mixed::refuses};
  }
};

template <> struct Samples<Linear> {
  static Case of(std::string name, const Shape& x, int64_t out, bool bias) {
    const int64_t in_size = x[x.rank() - 1];
    return {.name = std::move(name),
            .inputs = {{.shape = x},
                       {.shape = {out, in_size}},
                       bias ? Input{.shape = {out}} : absent()},
            .call = [](const Tensors& in) { return linear(in[0], in[1], in[2]); },
            .oracle =
                [=](const Arrays& in) {
                  Shape result = x;
                  result[x.rank() - 1] = out;
                  return array_of(result, [&](Dims i) {
                    const int last = x.rank() - 1;
                    const int64_t o = i[last];
                    double sum = bias ? in[2](o) : 0;
                    for (int64_t p = 0; p < in_size; ++p)
                      i[last] = p, sum += in[0][i] * in[1](o, p);
                    return sum;
                  });
                },
            .reduced = in_size};
  }
  static OpSamples make() {
    return {
        .cases = {of("with bias", {4, 5}, 3, true), of("without bias", {4, 5}, 3, false),
                  of("three dimensions", {2, 3, 5}, 4, true), of("a vector", {5}, 4, true),
                  of("odd", {17, 33}, 15, true), of("wide", {64, 70}, 130, true),
                  of("one output", {7, 20}, 1, true), of("no rows", {0, 5}, 3, true)},
        .errors = {error<ShapeError>(
                       "[linear] inner sizes differ: x is [2, 3] f32, weight is [4, 5] f32; "
                       "x.size(-1) must equal weight.size(1).",
                       [] {
                         linear(ones({2, 3}), ones({4, 5}));
                       }),
                   error<ShapeError>("[linear] bias is [3] f32 for 4 channels. It must be [4].",
                                     [] {
                                       linear(ones({2, 5}), ones({4, 5}), ones({3}));
                                     }),
                   error<ShapeError>("[linear] weight is [4] f32, of rank 1. It must have rank 2.",
                                     [] {
                                       linear(ones({2, 4}), ones({4}));
                                     }),
                   error<DTypeError>("[linear] dtypes differ: [2, 5] f32 and [4] bf16.",
                                     [] {
                                       linear(ones({2, 5}), ones({4, 5}), ones({4}, bf16));
                                     })},
        .mixed = Mixed::refuses};
  }
};

}  // namespace halftone::test
