// Samples of embedding, dropout and checkpoint.
#pragma once

#include "ops/samples_case.h"

namespace halftone::test {

template <> struct Samples<Embedding> {
  static Case of(std::string name, const Shape& table, const Shape& which, Values indices,
                 int64_t padding = -1) {
    return {.name = std::move(name),
            .inputs = {{.shape = table}, integers(which, std::move(indices))},
            .call = [padding](const Tensors& in) { return embedding(in[1], in[0], padding); },
            .oracle =
                [=](const Arrays& in) {
                  Shape result = which;
                  result.push_back(table[1]);
                  return array_of(result, [&](Dims i) {
                    const int64_t column = i[i.rank() - 1];
                    i.erase(i.rank() - 1);
                    return in[0](int64_t(in[1][i]), column);
                  });
                },
            .smooth = padding < 0};  // the padding row has values but no gradient
  }
  static OpSamples make() {
    return {
        .cases = {of("a sequence", {5, 4}, {3}, {4, 0, 2}),
                  of("a batch", {5, 4}, {2, 3}, {4, 0, 2, 1, 3, 3}),
                  of("the same row often", {3, 2}, {7}, {1, 1, 1, 0, 1, 2, 1}),
                  of("one index", {5, 4}, {}, {3}), of("padding", {4, 3}, {5}, {0, 2, 2, 1, 3}, 2)},
        .errors = {
            error<UsageError>(
                "[embedding] index 5 is out of range for a table of 5 rows. Indices must be from "
                "0 to 4.",
                [] {
                  embedding(full({2}, 5, i64), ones({5, 3}));
                }),
            error<UsageError>("[embedding] index -1 is out of range",
                              [] {
                                embedding(full({2}, -1, i64), ones({5, 3}));
                              }),
            error<DTypeError>("[embedding] indices must be i64 or i32, got [2] f32. Cast it first.",
                              [] {
                                embedding(ones({2}), ones({5, 3}));
                              }),
            error<ShapeError>("[embedding] the table is [5] f32, of rank 1. It must have rank 2.",
                              [] { embedding(zeros({2}, i64), ones({5})); })}};
  }
};

template <> struct Samples<Dropout> {
  static constexpr uint64_t seed = 77;
  static Case with(std::string name, const Shape& shape, double p) {
    return {.name = std::move(name),
            .inputs = {{.shape = shape}},
            .call =
                [p](const Tensors& in) {
                  manual_seed(seed);  // every call of a case draws the same mask
                  return dropout(in[0], p);
                },
            .oracle =
                [p](const Arrays& in) {
                  Array y =
                      in[0];  // element i keeps its value if word i % 4 of counter i / 4 says so
                  for (std::size_t i = 0; i < y.values.size(); ++i) {
                    const uint32_t word = Philox::words(seed, i / 4)[i % 4];
                    const bool kept = p == 0 || double(word >> 8) / double(1 << 24) >= p;
                    y.values[i] = kept ? y.values[i] / (1 - p) : 0;
                  }
                  return y;
                },
            .any_strides = false};
  }
  static OpSamples make() {
    return {.cases = {with("a half", {5, 7}, 0.5), with("a little", {4, 9}, 0.1),
                      with("almost all", {40}, 0.9), with("nothing", {3, 4}, 0),
                      with("everything", {3, 4}, 1), with("long", {3, 701}, 0.3),
                      with("empty", {0, 3}, 0.5)},
            .errors = {error<UsageError>("[dropout] p is 1.5. It must be on [0, 1].",
                                         [] { dropout(ones({2}), 1.5); }),
                       error<UsageError>("[dropout] p is nan.",
                                         [] { dropout(ones({2}), std::nan("")); })}};
  }
};

template <> struct Samples<Checkpoint> {
  static OpSamples make() {
    const Case products{.name = "two inputs",
                        .inputs = {{.shape = {3, 4}}, {.shape = {3, 4}}},
                        .call =
                            [](const Tensors& in) {
                              return checkpoint(
                                  [](const Tensors& x) { return tanh(x[0]) * tanh(x[0]) * x[1]; },
                                  in);
                            },
                        .oracle =
                            [](const Arrays& in) {
                              return array_of({3, 4}, [&](const Dims& i) {
                                return std::pow(std::tanh(in[0][i]), 2) * in[1][i];
                              });
                            },
                        .roundings = 2,
                        .condition = 4};
    Case once{.name = "one input, used twice",
              .inputs = {{.shape = {5}}},
              .call =
                  [](const Tensors& in) {
                    return checkpoint([](const Tensors& x) { return sigmoid(x[0]) + x[0] * x[0]; },
                                      in);
                  },
              .oracle =
                  [](const Arrays& in) {
                    return array_of({5}, [&](const Dims& i) {
                      return 1 / (1 + std::exp(-in[0][i])) + in[0][i] * in[0][i];
                    });
                  },
              .roundings = 2,
              .condition = 4};
    return {.cases = {products, once},
            .errors = {error<UsageError>("[tanh] an input is undefined. Pass a tensor.", [] {
              checkpoint([](const Tensors& x) { return tanh(x[0]); }, {Tensor{}});
            })}};
  }
};

}  // namespace halftone::test
