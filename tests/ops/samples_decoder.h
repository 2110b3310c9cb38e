// Samples of the decoders' operations: rotary positions, gated units, products of groups of rows.
#pragma once

#include <cmath>

#include "ops/samples_case.h"
#include "ops/samples_products.h"

namespace halftone::test {

template <> struct Samples<Rope> {
  /// The frequency of pair i of `pairs`, by the formulas of Llama 3.1.
  static double frequency(const RopeOptions& options, int64_t i, int64_t pairs) {
    const double plain = 1 / std::pow(options.theta, double(i) / double(pairs));
    const RopeScaling& s = options.scaling;
    const double length = 2 * std::acos(-1.0) / plain, context = double(s.original_context);
    if (s.factor == 1 || length < context / s.high_frequency_factor) return plain;
    if (length > context / s.low_frequency_factor) return plain / s.factor;
    const double smooth = (context / length - s.low_frequency_factor) /
                          (s.high_frequency_factor - s.low_frequency_factor);
    return (1 - smooth) * plain / s.factor + smooth * plain;
  }
  static Case of(std::string name, const Shape& x, const RopeOptions& options = {}) {
    return {.name = std::move(name),
            .inputs = {{.shape = x}},
            .call = [=](const Tensors& in) { return rope(in[0], options); },
            .oracle =
                [=](const Arrays& in) {
                  const int r = x.rank();
                  const int64_t pairs = x[r - 1] / 2;
                  return array_of(x, [&](const Dims& index) {
                    const int64_t c = index[r - 1];
                    const int64_t pair = options.interleaved ? c / 2 : c % pairs;
                    const bool second = options.interleaved ? c % 2 == 1 : c >= pairs;
                    Dims partner = index;
                    const int64_t apart = options.interleaved ? 1 : pairs;
                    partner[r - 1] += second ? -apart : apart;
                    const double angle =
                        double(options.position + index[r - 2]) * frequency(options, pair, pairs);
                    const double sine = second ? std::sin(angle) : -std::sin(angle);
                    return in[0][index] * std::cos(angle) + in[0][partner] * sine;
                  });
                },
            .reduced = 2};
  }
  static OpSamples make() {
    const RopeScaling scaling{.factor = 8, .original_context = 64};
    return {
        .cases = {of("heads", {2, 3, 5, 8}), of("neighbors", {2, 2, 7, 6}, {.interleaved = true}),
                  of("one head", {2, 5, 4}), of("one text", {9, 4}, {.theta = 500}),
                  of("later positions", {1, 2, 3, 10}, {.position = 7}),
                  of("far away", {3, 2}, {.position = 123456789}),
                  of("slower long waves", {1, 1, 6, 32}, {.scaling = scaling}),
                  of("many rows", {1, 2, 700, 16}), of("no rows", {1, 2, 0, 4})},
        .errors = {
            REFUSES(ShapeError,
                    "[rope] [2, 3] f32 has no pairs. It must be [..., l, e], of rank 2 "
                    "to 4, with e even.",
                    rope(ones({2, 3}))),
            REFUSES(ShapeError, "[rope] [4] f32 has no pairs.", rope(ones({4}))),
            REFUSES(ShapeError, "[rope] [1, 1, 1, 2, 4] f32 has no pairs.",
                    rope(ones({1, 1, 1, 2, 4}))),
            REFUSES(UsageError, "[rope] theta is 0. It must be positive.",
                    rope(ones({2, 4}), {.theta = 0})),
            REFUSES(UsageError, "[rope] the first position is -1. It must be 0 or more.",
                    rope(ones({2, 4}), {.position = -1})),
            REFUSES(UsageError,
                    "[rope] the scaling has the factor 2, the bounds 4 and 4 and the "
                    "original context 8192. Factor and context must be positive, the "
                    "bounds must rise.",
                    rope(ones({2, 4}), {.scaling = {.factor = 2, .low_frequency_factor = 4}}))}};
  }
};

template <> struct Samples<PackedSwiglu> {
  static Case of(std::string name, const Shape& x) {
    return {.name = std::move(name),
            .inputs = {{.shape = x}},
            .call = [](const Tensors& in) { return swiglu(in[0]); },
            .oracle =
                [=](const Arrays& in) {
                  Shape half = x;
                  const int64_t n = half[x.rank() - 1] /= 2;
                  return array_of(half, [&](const Dims& index) {
                    Dims up = index;
                    up[x.rank() - 1] += n;
                    const double gate = in[0][index];
                    return gate / (1 + std::exp(-gate)) * in[0][up];
                  });
                },
            .condition = 2};
  }
  static OpSamples make() {
    return {.cases = {of("rows", {3, 8}), of("one vector", {10}), of("a batch", {2, 3, 6}),
                      of("longer than a block", {2, 2100}), of("nothing", {0, 4})},
            .errors = {REFUSES(ShapeError,
                               "[swiglu] the last dimension of [2, 3] f32 has no halves. Its size "
                               "must be even.",
                               swiglu(ones({2, 3}))),
                       REFUSES(ShapeError, "[swiglu] the last dimension of [] f32 has no halves.",
                               swiglu(ones({})))}};
  }
};

/// The products inside of attention are Matmul's.
template <class Product> OpSamples inner_products() {
  OpSamples samples{
      .cases = {Samples<Matmul>::of("heads", {2, 2, 5, 4}, {2, 2, 4, 6}, {2, 2, 5, 6}),
                Samples<Matmul>::of("one row", {1, 3, 1, 7}, {1, 3, 7, 9}, {1, 3, 1, 9}),
                Samples<Matmul>::of("no keys", {1, 2, 3, 4}, {1, 2, 4, 0}, {1, 2, 3, 0})}};
  for (Case& c : samples.cases)
    c.call = [](const Tensors& in) { return apply(Product{}, in[0], in[1]); };
  samples.errors = {REFUSES(ShapeError,
                            "[" + std::string(Product::info.name) +
                                "] the operands are [1, 1, 2, 3] f32 and [1, 1, 2, 3] f32. They "
                                "must be [n, heads, m, k] and [n, heads, k, l].",
                            apply(Product{}, ones({1, 1, 2, 3}), ones({1, 1, 2, 3})))};
  samples.mixed = Mixed::refuses;
  return samples;
}
template <> struct Samples<AttentionScores> {
  static OpSamples make() { return inner_products<AttentionScores>(); }
};
template <> struct Samples<AttentionValues> {
  static OpSamples make() { return inner_products<AttentionValues>(); }
};

template <> struct Samples<AttentionProbabilities> {
  static Case of(std::string name, const Shape& shape, const Input& mask) {
    const bool seen = mask.kind != InputKind::absent;
    return {.name = std::move(name),
            .inputs = {{.shape = shape}, mask},
            .call = [](const Tensors& in) { return apply(AttentionProbabilities{}, in[0], in[1]); },
            .oracle =
                [=](const Arrays& in) {
                  return array_of(shape, [&](Dims i) {
                    const double own = in[0][i];
                    if (seen && in[1][i] == 0) return 0.0;
                    double sum = 0;
                    for (int64_t j = 0; j < shape[3]; ++j) {
                      i[3] = j;
                      if (!seen || in[1][i] != 0) sum += std::exp(in[0][i] - own);
                    }
                    return 1 / sum;
                  });
                },
            .reduced = shape[3],
            .condition = 4};
  }
  static OpSamples make() {
    const Shape shape{1, 2, 2, 4};
    return {.cases = {of("no mask", shape, absent()),
                      of("a mask, and a row without keys", shape,
                         {.shape = shape,
                          .kind = InputKind::condition,
                          .given = {1, 0, 1, 1, 0, 1, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1}})},
            .errors = {REFUSES(ShapeError,
                               "[attention_probabilities] the scores are [2, 3] f32. They must be "
                               "[n, heads, l, s].",
                               apply(AttentionProbabilities{}, ones({2, 3}), Tensor{}))}};
  }
};

template <> struct Samples<RouterScores> {
  static OpSamples make() {
    OpSamples samples;
    for (const Shape& x : {Shape{4, 5}, Shape{2, 3, 5}, Shape{5}, Shape{17, 33}, Shape{0, 5}}) {
      Case& c = samples.cases.emplace_back(
          Samples<Linear>::of("of rank " + std::to_string(x.rank()), x, 3, false));
      c.call = [](const Tensors& in) { return router_scores(in[0], in[1]); };
      c.condition = 2;
    }
    samples.errors = {REFUSES(ShapeError,
                              "[router_scores] x is [2, 3] f32, weight is [4, 5] f32; they must be "
                              "[.., features] and [experts, features].",
                              router_scores(ones({2, 3}), ones({4, 5}))),
                      REFUSES(DTypeError, "[router_scores] dtypes differ: ",
                              router_scores(ones({2, 5}), ones({4, 5}, bf16)))};
    samples.mixed = Mixed::refuses;
    return samples;
  }
};

template <> struct Samples<GroupedLinear> {
  static Case of(std::string name, int64_t in, int64_t out, const Values& ends,
                 bool transposed = false) {
    const auto groups = int64_t(ends.size());
    const int64_t rows = ends.empty() ? 0 : int64_t(ends.back());
    return {.name = std::move(name),
            .inputs = {{.shape = {rows, in}},
                       {.shape = transposed ? Shape{groups, in, out} : Shape{groups, out, in}}},
            .call =
                [=](const Tensors& x) {
                  return grouped_linear(x[0], transposed ? transpose(x[1], 1, 2) : x[1],
                                        from_vector(ends, {groups}, i64, test_device()));
                },
            .oracle =
                [=](const Arrays& x) {
                  return array_of({rows, out}, [&](const Dims& index) {
                    int64_t group = 0;
                    while (double(index[0]) >= ends[std::size_t(group)]) ++group;
                    double sum = 0;
                    for (int64_t p = 0; p < in; ++p)
                      sum += x[0](index[0], p) *
                             (transposed ? x[1](group, p, index[1]) : x[1](group, index[1], p));
                    return sum;
                  });
                },
            .reduced = std::max({in, out, rows})};
  }
  static OpSamples make() {
    const std::string op = "[grouped_linear] ";
    return {.cases = {of("three groups", 4, 5, {2, 3, 7}), of("one group", 6, 3, {5}),
                      of("groups without rows", 4, 5, {0, 3, 3, 7, 7}),
                      of("weights stored transposed", 7, 9, {4, 9}, true),
                      of("long groups", 40, 33, {65, 66, 200}), of("no rows", 3, 4, {0, 0})},
            .errors = {REFUSES(ShapeError,
                               op + "x is [2, 3] f32, weight is [2, 4, 5] f32. They must be [rows, "
                                    "in] and [groups, out, in].",
                               grouped_linear(ones({2, 3}), ones({2, 4, 5}), from({1, 2}))),
                       REFUSES(ShapeError,
                               op + "ends is [1] i64 for 2 groups. It must be integers, one for "
                                    "each group.",
                               grouped_linear(ones({2, 3}), ones({2, 5, 3}), from({2}))),
                       REFUSES(UsageError,
                               op + "a group ends at 1 after 2, of 2 rows. Ends must not fall, and "
                                    "be rows.",
                               grouped_linear(ones({2, 3}), ones({2, 5, 3}), from({2, 1}))),
                       REFUSES(UsageError,
                               op + "the last group ends at 1 of 2 rows. Each row must be in a "
                                    "group.",
                               grouped_linear(ones({2, 3}), ones({2, 5, 3}), from({1, 1})))},
            .mixed = Mixed::refuses};
  }
};

}  // namespace halftone::test
