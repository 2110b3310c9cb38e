// Samples of attention. Its oracle stores all weights.
#pragma once

#include <limits>

#include "ops/samples_case.h"

namespace halftone::test {

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
        .errors = {
            error<ShapeError>(op + "qkv is [2, 5, 12] f32 for 3 heads. Its last dimension must be "
                                   "3 heads times their width.",
                              [] {
                                self_attention(ones({2, 5, 12}), 3);
                              }),
            error<ShapeError>(op + "qkv is [2, 5, 12] f32 for 0 heads.",
                              [] {
                                self_attention(ones({2, 5, 12}), 0);
                              }),
            error<ShapeError>(op + "qkv is [5, 12] f32, of rank 2. It must have rank 3.",
                              [] {
                                self_attention(ones({5, 12}), 2);
                              }),
            error<UnsupportedError>(
                op + "a mask of packed attention gets no gradient. Give "
                     "scaled_dot_product_attention queries, keys and values.",
                [] {
                  self_attention(ones({1, 2, 6}), 1, {.mask = ones({2, 2}).set_requires_grad()});
                })}};
  }
};

}  // namespace halftone::test
