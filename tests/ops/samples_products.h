// Samples of the matrix products: sizes around the edges of tiles, batches, views.
#pragma once

#include <limits>

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
    return {.cases = {of("ones", {1, 1}, {1, 1}, {1, 1}),
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
            .errors =
                {REFUSES(ShapeError,
                         "[matmul] inner sizes differ: a is [32, 784] f32, b is [256, 10] f32; "
                         "a.size(-1) must equal b.size(-2).",
                         matmul(ones({32, 784}), ones({256, 10}))),
                 REFUSES(ShapeError,
                         "[matmul] a is [] f32, b is [2] f32; scalars have no product. Use mul().",
                         matmul(ones({}), ones({2}))),
                 REFUSES(ShapeError,
                         "[matmul] shapes do not broadcast: [2] and [3] differ in dimension 0.",
                         matmul(ones({2, 3, 4}), ones({3, 4, 5}))),
                 REFUSES(DTypeError,
                         "[matmul] dtypes differ: [2, 3] f32 and [3, 2] bf16. Cast one of them, or "
                         "run under autocast.",
                         matmul(ones({2, 3}), ones({3, 2}, bf16)))},
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
        .errors = {REFUSES(ShapeError,
                           "[linear] inner sizes differ: x is [2, 3] f32, weight is [4, 5] f32; "
                           "x.size(-1) must equal weight.size(1).",
                           linear(ones({2, 3}), ones({4, 5}))),
                   REFUSES(ShapeError, "[linear] bias is [3] f32 for 4 channels. It must be [4].",
                           linear(ones({2, 5}), ones({4, 5}), ones({3}))),
                   REFUSES(ShapeError,
                           "[linear] weight is [4] f32, of rank 1. It must have rank 2.",
                           linear(ones({2, 4}), ones({4}))),
                   REFUSES(DTypeError, "[linear] dtypes differ: [2, 5] f32 and [4] bf16.",
                           linear(ones({2, 5}), ones({4, 5}), ones({4}, bf16)))},
        .mixed = Mixed::refuses};
  }
};

// Samples of the products of vectors.

template <> struct Samples<Dot> {
  static OpSamples make() {
    std::vector<Case> cases;
    for (const int64_t n : {5, 1, 700})
      cases.push_back({.name = std::to_string(n) + " elements",
                       .inputs = {{.shape = {n}}, {.shape = {n}}},
                       .call = [](const Tensors& in) { return dot(in[0], in[1]); },
                       .oracle =
                           [](const Arrays& in) {
                             Array sum{Shape{}};
                             for (int64_t i = 0; i < in[0].size(0); ++i)
                               sum.values[0] += in[0](i) * in[1](i);
                             return sum;
                           },
                       .reduced = n});
    return {.cases = cases,
            .errors = {REFUSES(ShapeError, "[dot] a is [2, 2] f32, of rank 2. It must have rank 1.",
                               dot(ones({2, 2}), ones({2}))),
                       REFUSES(ShapeError,
                               "[dot] a is [2] f32, b is [3] f32. They must have the "
                               "same number of elements.",
                               dot(ones({2}), ones({3})))}};
  }
};

template <> struct Samples<CosineSimilarity> {
  static Array oracle(const Array& a, const Array& b, const Shape& shape, int dim, double eps) {
    Shape result = shape;
    result.erase(dim);
    return array_of(result, [&](const Dims& index) {
      double product = 0, a_squares = 0, b_squares = 0;
      each_index(shape, [&](const Dims& i) {
        Dims rest = i;
        rest.erase(dim);
        if (rest != index) return;
        const double x = a.broadcast(i), z = b.broadcast(i);
        product += x * z, a_squares += x * x, b_squares += z * z;
      });
      return product / (std::max(std::sqrt(a_squares), eps) * std::max(std::sqrt(b_squares), eps));
    });
  }
  static Case of(std::string name, const Shape& a, const Shape& b, const Shape& shape, int dim,
                 double eps = 1e-8) {
    const int d = (dim + shape.rank()) % shape.rank();
    return {.name = std::move(name),
            .inputs = {{.shape = a}, {.shape = b}},
            .call = [=](const Tensors& in) { return cosine_similarity(in[0], in[1], dim, eps); },
            .oracle = [=](const Arrays& in) { return oracle(in[0], in[1], shape, d, eps); },
            .reduced = shape[d],
            .broadcast = a != b};
  }
  static OpSamples make() {
    return {.cases = {of("rows", {3, 5}, {3, 5}, {3, 5}, 1),
                      of("the first dimension", {5, 2}, {5, 2}, {5, 2}, 0),
                      of("the middle", {2, 7, 3}, {2, 7, 3}, {2, 7, 3}, -2),
                      of("broadcast", {4, 1, 6}, {3, 6}, {4, 3, 6}, -1),
                      of("norms below eps", {2, 3}, {2, 3}, {2, 3}, 1, 100)},
            .errors = {REFUSES(ShapeError,
                               "[cosine_similarity] dimension 2 is out of range for rank 2. "
                               "Use -2 to 1.",
                               cosine_similarity(ones({2, 2}), ones({2, 2}), 2)),
                       REFUSES(UsageError, "[cosine_similarity] eps is 0. It must be positive.",
                               cosine_similarity(ones({2, 2}), ones({2, 2}), 1, 0))}};
  }
};

// Samples of attention. Its oracle stores all weights.

struct AttentionCase {
  Shape q, k, v;          // [n, heads, l, e], [n, heads, s, e], [n, heads, s, ev]
  Input mask = absent();  // [n, heads, l, s] or what broadcasts to it
  AttentionOptions options{};
};
constexpr uint64_t attention_seed = 78;

/// y = dropout(softmax(scale q k^T + mask)) v for arrays of rank 4.
inline Array attention_oracle(const Array& q, const Array& k, const Array& v, const Array& mask,
                              bool mask_is_condition, const AttentionOptions& options) {
  const int64_t heads = q.size(1), l = q.size(2), s = k.size(2), e = q.size(3);
  const double scale = options.scale.value_or(1 / std::sqrt(double(e)));
  const int64_t group = std::max<int64_t>(1, heads / std::max<int64_t>(1, k.size(1)));
  Array y({q.size(0), heads, l, v.size(3)});
  each_index({q.size(0), heads, l}, [&](const Dims& row) {
    const int64_t n = row[0], h = row[1], i = row[2];
    Values weights;
    double total = 0;
    for (int64_t j = 0; j < s; ++j) {
      double score = 0;
      for (int64_t c = 0; c < e; ++c) score += scale * q(n, h, i, c) * k(n, h / group, j, c);
      bool seen = !options.causal || j <= i;
      if (!mask.values.empty()) {
        const double value = mask.broadcast({n, h, i, j});
        if (mask_is_condition) seen = seen && value != 0;
        else score += value;
      }
      weights.push_back(seen ? std::exp(score) : 0);
      total += weights.back();
    }
    for (int64_t j = 0; j < s && total > 0; ++j) {
      double weight = weights[std::size_t(j)] / total;
      if (options.dropout > 0) {
        const auto place = uint64_t(((n * heads + h) * l + i) * s + j);
        const uint32_t word = Philox::words(attention_seed, place / 4)[place % 4];
        const bool kept = double(word >> 8) / double(1 << 24) >= options.dropout;
        weight = kept ? weight / (1 - options.dropout) : 0;
      }
      for (int64_t c = 0; c < v.size(3); ++c) y(n, h, i, c) += weight * v(n, h / group, j, c);
    }
  });
  return y;
}

template <> struct Samples<Attention> {
  static Case of(std::string name, const AttentionCase& test) {
    return {.name = std::move(name),
            .inputs = {{.shape = test.q}, {.shape = test.k}, {.shape = test.v}, test.mask},
            .call =
                [options = test.options](const Tensors& in) {
                  manual_seed(attention_seed);
                  AttentionOptions with_mask = options;
                  with_mask.mask = in[3];
                  return scaled_dot_product_attention(in[0], in[1], in[2], with_mask);
                },
            .oracle =
                [test](const Arrays& in) {
                  const auto of_rank_4 = [](Array x) {
                    Shape shape = Dims::filled(4 - x.shape.rank(), 1);
                    for (int i = 0; i < x.shape.rank(); ++i) shape.push_back(x.shape[i]);
                    return Array(shape, std::move(x.values));
                  };
                  const bool masked = test.mask.kind != InputKind::absent;
                  Array y = attention_oracle(of_rank_4(in[0]), of_rank_4(in[1]), of_rank_4(in[2]),
                                             masked ? of_rank_4(in[3]) : Array{},
                                             test.mask.kind == InputKind::condition, test.options);
                  Shape shape = in[0].shape;
                  shape[shape.rank() - 1] = in[2].shape[shape.rank() - 1];
                  return Array(shape, std::move(y.values));
                },
            .reduced = test.k[test.k.rank() - 2],
            .roundings = 2,
            .condition = 4};
  }
  static Input visible(const Shape& shape, Values values) {
    return {.shape = shape, .kind = InputKind::condition, .given = std::move(values)};
  }
  static std::vector<Case> cases() {
    return {
        of("plain", {{2, 2, 5, 4}, {2, 2, 5, 4}, {2, 2, 5, 4}}),
        of("causal", {{1, 2, 6, 3}, {1, 2, 6, 3}, {1, 2, 6, 3}, absent(), {.causal = true}}),
        of("more keys, causal",
           {{1, 1, 3, 4}, {1, 1, 7, 4}, {1, 1, 7, 4}, absent(), {.causal = true}}),
        of("fewer keys, causal",
           {{1, 1, 7, 4}, {1, 1, 3, 4}, {1, 1, 3, 4}, absent(), {.causal = true}}),
        of("wider values", {{1, 2, 4, 3}, {1, 2, 5, 3}, {1, 2, 5, 6}}),
        of("rank 2", {{4, 3}, {5, 3}, {5, 2}}),
        of("rank 3", {{2, 4, 3}, {2, 5, 3}, {2, 5, 2}}),
        of("scale", {{1, 1, 4, 3}, {1, 1, 4, 3}, {1, 1, 4, 3}, absent(), {.scale = 0.3}}),
        of("negative scale", {{1, 1, 4, 3}, {1, 1, 4, 3}, {1, 1, 4, 3}, absent(), {.scale = -0.5}}),
        of("condition", {{2, 1, 3, 2}, {2, 1, 4, 2}, {2, 1, 4, 2}, condition({2, 1, 3, 4})}),
        of("condition for all heads",
           {{2, 2, 3, 2}, {2, 2, 4, 2}, {2, 2, 4, 2}, visible({4}, {1, 1, 0, 1})}),
        of("a row without keys",
           {{1, 1, 2, 3}, {1, 1, 3, 3}, {1, 1, 3, 3}, visible({2, 3}, {0, 0, 0, 1, 0, 1})}),
        of("added mask", {{1, 2, 3, 2},
                          {1, 2, 4, 2},
                          {1, 2, 4, 2},
                          {.shape = {1, 1, 3, 4}, .kind = InputKind::constant}}),
        of("dropout", {{1, 2, 5, 3}, {1, 2, 9, 3}, {1, 2, 9, 3}, absent(), {.dropout = 0.3}}),
        of("dropout, causal",
           {{1, 1, 6, 3}, {1, 1, 6, 3}, {1, 1, 6, 3}, absent(), {.dropout = 0.5, .causal = true}}),
        of("shared keys",
           {{2, 6, 5, 3}, {2, 2, 4, 3}, {2, 2, 4, 2}, absent(), {.enable_gqa = true}}),
        of("shared keys, causal", {{1, 4, 6, 3},
                                   {1, 1, 6, 3},
                                   {1, 1, 6, 3},
                                   absent(),
                                   {.causal = true, .enable_gqa = true}}),
        of("shared keys, condition", {{2, 4, 3, 2},
                                      {2, 2, 4, 2},
                                      {2, 2, 4, 2},
                                      condition({2, 4, 3, 4}),
                                      {.enable_gqa = true}}),
        of("shared keys, dropout", {{2, 4, 70, 3},
                                    {2, 2, 67, 3},
                                    {2, 2, 67, 3},
                                    absent(),
                                    {.dropout = 0.3, .enable_gqa = true}}),
        of("shared keys, rank 3",
           {{4, 3, 2}, {2, 5, 2}, {2, 5, 3}, absent(), {.enable_gqa = true}}),
        of("long", {{1, 1, 3, 8}, {1, 1, 300, 8}, {1, 1, 300, 2}}),
        of("no queries", {{1, 2, 0, 3}, {1, 2, 4, 3}, {1, 2, 4, 3}}),
        of("no keys", {{1, 2, 3, 3}, {1, 2, 0, 3}, {1, 2, 0, 3}}),
    };
  }
  static std::vector<ErrorCase> errors() {
    const auto call = [](const Shape& q, const Shape& k, const Shape& v,
                         const AttentionOptions& options = {}) {
      return [=] { scaled_dot_product_attention(ones(q), ones(k), ones(v), options); };
    };
    const std::string op = "[scaled_dot_product_attention] ";
    return {
        error<ShapeError>(op + "q is [2, 3] f32, k is [4, 5] f32, v is [4, 5] f32. They must be "
                               "[..., l, e], [..., s, e] and [..., s, ev], of rank 2 to 4.",
                          call({2, 3}, {4, 5}, {4, 5})),
        error<ShapeError>(op + "q is [2, 2, 3] f32, k is [1, 4, 3] f32",
                          call({2, 2, 3}, {1, 4, 3}, {1, 4, 3})),
        error<ShapeError>(op + "q is [3] f32", call({3}, {3}, {3})),
        error<ShapeError>(op + "the mask is [1, 2, 4] f32, the weights are [2, 4]. The mask must "
                               "broadcast to them.",
                          call({2, 3}, {4, 3}, {4, 3}, {.mask = ones({1, 2, 4})})),
        error<ShapeError>(op + "shapes do not broadcast: [3, 4] and [2, 4]",
                          call({2, 3}, {4, 3}, {4, 3}, {.mask = ones({3, 4})})),
        error<DTypeError>(op + "needs f64, f32, f16 or bf16, got [2, 4] i64.",
                          call({2, 3}, {4, 3}, {4, 3}, {.mask = ones({2, 4}, i64)})),
        error<UsageError>(op + "dropout is 1. It must be on [0, 1).",
                          call({2, 3}, {4, 3}, {4, 3}, {.dropout = 1})),
        error<UsageError>(op + "causal and a mask are both given. Put the causal part into the "
                               "mask.",
                          call({2, 3}, {4, 3}, {4, 3}, {.mask = ones({2, 4}), .causal = true})),
        error<UsageError>(
            op + "scale is inf. It must be finite.",
            call({2, 3}, {4, 3}, {4, 3}, {.scale = std::numeric_limits<double>::infinity()})),
    };
  }
  static OpSamples make() {
    return {.cases = cases(), .errors = errors(), .mixed = Mixed::refuses};
  }
};

template <> struct Samples<PackedAttention> {
  static Case of(std::string name, const Shape& qkv, int64_t heads, Input mask = absent(),
                 const AttentionOptions& options = {}) {
    const bool is_condition = mask.kind == InputKind::condition;
    return {.name = std::move(name),
            .inputs = {{.shape = qkv}, std::move(mask)},
            .call =
                [=](const Tensors& in) {
                  manual_seed(attention_seed);
                  AttentionOptions with_mask = options;
                  with_mask.mask = in[1];
                  return self_attention(in[0], heads, with_mask);
                },
            .oracle =
                [=](const Arrays& in) {
                  const int64_t width = qkv[2] / 3, e = width / heads;
                  const auto part = [&](int64_t which) {
                    return array_of({qkv[0], heads, qkv[1], e}, [&](const Dims& i) {
                      return in[0](i[0], i[2], which * width + i[1] * e + i[3]);
                    });
                  };
                  const Array y =
                      attention_oracle(part(0), part(1), part(2), in[1], is_condition, options);
                  return array_of({qkv[0], qkv[1], width},
                                  [&](const Dims& i) { return y(i[0], i[2] / e, i[1], i[2] % e); });
                },
            .reduced = qkv[1],
            .roundings = 2,
            .condition = 4};
  }
  static OpSamples make() {
    const std::string op = "[scaled_dot_product_attention] ";
    return {
        .cases = {of("two heads", {2, 5, 12}, 2),
                  of("causal", {1, 6, 12}, 2, absent(), {.causal = true}),
                  of("one head", {2, 3, 9}, 1), of("one position", {2, 1, 12}, 2),
                  of("condition", {1, 4, 12}, 2,
                     {.shape = {1, 1, 1, 4}, .kind = InputKind::condition, .given = {1, 1, 0, 1}}),
                  of("dropout", {1, 5, 12}, 2, absent(), {.dropout = 0.4}),
                  of("nothing", {0, 4, 6}, 2)},
        .errors = {REFUSES(ShapeError,
                           op + "qkv is [2, 5, 12] f32 for 3 heads. Its last dimension must be "
                                "3 heads times their width.",
                           self_attention(ones({2, 5, 12}), 3)),
                   REFUSES(ShapeError, op + "qkv is [2, 5, 12] f32 for 0 heads.",
                           self_attention(ones({2, 5, 12}), 0)),
                   REFUSES(ShapeError, op + "qkv is [5, 12] f32, of rank 2. It must have rank 3.",
                           self_attention(ones({5, 12}), 2)),
                   REFUSES(UnsupportedError,
                           op + "a mask of packed attention gets no gradient. Give "
                                "scaled_dot_product_attention queries, keys and values.",
                           self_attention(ones({1, 2, 6}), 1,
                                          {.mask = ones({2, 2}).set_requires_grad()}))}};
  }
};

}  // namespace halftone::test
