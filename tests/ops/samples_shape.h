// Samples of cast and of the operations that move elements: their oracles are permutations.
#pragma once

#include "ops/samples_case.h"

namespace halftone::test {

/// A case with one input of `shape`; element i of the result is element source(i) of the input.
template <class Source>
Case moved(std::string name, const Shape& shape, const Shape& result,
           std::function<Tensor(const Tensor&)> call, Source source) {
  return {.name = std::move(name),
          .inputs = {{.shape = shape}},
          .call = [call](const Tensors& in) { return call(in[0]); },
          .oracle =
              [result, source](const Arrays& in) {
                return array_of(result, [&](const Dims& i) { return in[0][source(i)]; });
              }};
}

template <> struct Samples<Cast> {
  static Case to(std::string name, DType target) {
    Case test{.name = std::move(name),
              .inputs = {{.shape = {3, 7}, .domain = {-9, 9}}},
              .call = [target](const Tensors& in) { return cast(in[0], target); },
              .oracle =
                  [target](const Arrays& in) {
                    return array_of(in[0].shape, [&](const Dims& i) {
                      return is_floating(target) ? in[0][i] : std::trunc(in[0][i]);
                    });
                  },
              .output = target,
              .gradient = is_floating(target),
              .smooth = target == f64};
    return test;
  }
  static OpSamples make() {
    return {.cases = {to("to f64", f64), to("to f32", f32), to("to bf16", bf16), to("to f16", f16),
                      to("to i64", i64), to("to i32", i32)},
            .errors = {REFUSES(UsageError, "[cast] the input is undefined. Pass a tensor.",
                               cast({}, f32))},
            .any_dtype = true};
  }
};

template <> struct Samples<Reshape> {
  static Case to(std::string name, const Shape& from, const Shape& target, const Shape& result) {
    return {.name = std::move(name),
            .inputs = {{.shape = from}},
            .call = [target](const Tensors& in) { return reshape(in[0], target); },
            .oracle = [result](const Arrays& in) { return Array(result, in[0].values); }};
  }
  static Case flat(std::string name, int start, int end, const Shape& result) {
    return {.name = std::move(name),
            .inputs = {{.shape = {2, 3, 2, 3}}},
            .call = [=](const Tensors& in) { return flatten(in[0], start, end); },
            .oracle = [result](const Arrays& in) { return Array(result, in[0].values); }};
  }
  static OpSamples make() {
    return {
        .cases = {to("joined", {2, 3, 4}, {6, 4}, {6, 4}),
                  to("split", {6, 4}, {2, 3, 2, 2}, {2, 3, 2, 2}),
                  to("one size unknown", {2, 3, 4}, {4, -1}, {4, 6}),
                  to("across boundaries", {4, 6}, {3, 8}, {3, 8}),
                  to("to a scalar", {1, 1}, {}, {}),
                  to("ones added", {3, 4}, {1, 3, 1, 4}, {1, 3, 1, 4}),
                  to("empty", {0, 4}, {2, 0}, {2, 0}), flat("flattened", 0, -1, {36}),
                  flat("flattened inside", 1, 2, {2, 6, 3})},
        .errors = {REFUSES(ShapeError,
                           "[reshape] [2, 3] f32 does not fit shape [4]. Element counts "
                           "must agree.",
                           reshape(ones({2, 3}), {4})),
                   REFUSES(ShapeError, "[reshape] [2, 3] f32 does not fit shape [4, 1].",
                           reshape(ones({2, 3}), {4, -1})),
                   REFUSES(ShapeError, "[flatten] start 2 is after end 1 for rank 3. Swap them.",
                           flatten(ones({2, 3, 2}), 2, 1))},
        .any_dtype = true};
  }
};

template <> struct Samples<Permute> {
  static Case by(std::string name, const Shape& shape, const Dims& order) {
    Shape result = shape;
    for (int d = 0; d < shape.rank(); ++d) result[d] = shape[int(order[d])];
    return moved(
        std::move(name), shape, result, [order](const Tensor& x) { return permute(x, order); },
        [order](const Dims& i) {
          Dims from = i;
          for (int d = 0; d < i.rank(); ++d) from[int(order[d])] = i[d];
          return from;
        });
  }
  static OpSamples make() {
    Case transposed = by("transpose", {2, 3, 4}, {0, 2, 1});
    transposed.call = [](const Tensors& in) { return transpose(in[0], -1, 1); };
    return {.cases = {by("matrix", {3, 5}, {1, 0}), by("cycle", {2, 3, 4}, {2, 0, 1}),
                      by("channels last", {2, 3, 2, 4}, {0, 2, 3, 1}), by("empty", {0, 2}, {1, 0}),
                      by("identity", {2, 3}, {0, 1}), transposed},
            .errors = {REFUSES(ShapeError,
                               "[permute] order [0, 0] for [2, 3] f32. Name each dimension "
                               "exactly once.",
                               permute(ones({2, 3}), {0, 0})),
                       REFUSES(ShapeError, "[permute] order [0] for [2, 3] f32.",
                               permute(ones({2, 3}), {0})),
                       REFUSES(ShapeError, "[permute] dimension 2 is out of range for rank 2.",
                               permute(ones({2, 3}), {0, 2}))},
            .any_dtype = true};
  }
};

template <> struct Samples<Expand> {
  static Case to(std::string name, const Shape& from, const Shape& target, const Shape& result) {
    return {.name = std::move(name),
            .inputs = {{.shape = from}},
            .call = [target](const Tensors& in) { return expand(in[0], target); },
            .oracle =
                [result](const Arrays& in) {
                  return array_of(result, [&](const Dims& i) { return in[0].broadcast(i); });
                }};
  }
  static OpSamples make() {
    return {.cases = {to("rows", {1, 4}, {3, 4}, {3, 4}),
                      to("new dimensions", {3, 1}, {2, 3, 4}, {2, 3, 4}),
                      to("a scalar", {}, {2, 3}, {2, 3}),
                      to("kept sizes", {2, 1, 3}, {-1, 4, -1}, {2, 4, 3}),
                      to("to nothing", {1, 3}, {0, 3}, {0, 3})},
            .errors = {REFUSES(ShapeError,
                               "[expand] [2, 3] f32 does not expand to [4, 3]. Only sizes of "
                               "1 can grow.",
                               expand(ones({2, 3}), {4, 3})),
                       REFUSES(ShapeError, "[expand] [2, 3] f32 does not expand to [3].",
                               expand(ones({2, 3}), {3}))},
            .any_dtype = true};
  }
};

template <> struct Samples<Slice> {
  static Case of(std::string name, const Shape& shape, int dim, int64_t start, int64_t end,
                 int64_t step, int64_t first, int64_t count) {
    Shape result = shape;
    result[dim] = count;
    return moved(
        std::move(name), shape, result,
        [=](const Tensor& x) { return slice(x, dim, start, end, step); },
        [=](Dims i) {
          i[dim] = first + i[dim] * step;
          return i;
        });
  }
  static OpSamples make() {
    Case one = moved(
        "select", {3, 4, 2}, {3, 2}, [](const Tensor& x) { return select(x, 1, -2); },
        [](const Dims& i) {
          return Dims{i[0], 2, i[1]};
        });
    return {.cases = {of("rows", {5, 3}, 0, 1, 4, 1, 1, 3), of("columns", {3, 7}, 1, 2, 6, 1, 2, 4),
                      of("every third", {3, 8}, 1, 1, 8, 3, 1, 3),
                      of("from the end", {6, 2}, 0, -3, -1, 1, 3, 2),
                      of("beyond the end", {4, 2}, 0, 2, 99, 1, 2, 2),
                      of("nothing", {4, 2}, 0, 3, 1, 1, 3, 0), one},
            .errors = {REFUSES(ShapeError, "[slice] a scalar has no dimensions. Reshape it to [1].",
                               slice(ones({}), 0, 0, 1)),
                       REFUSES(UsageError, "[slice] step is 0. It must be at least 1.",
                               slice(ones({3}), 0, 0, 1, 0)),
                       REFUSES(ShapeError,
                               "[slice] dimension 1 is out of range for rank 1. Use -1 to 0.",
                               slice(ones({3}), 1, 0, 1)),
                       REFUSES(ShapeError,
                               "[select] index 3 is out of range for dimension 0 of [3] f32. "
                               "Use -3 to 2.",
                               select(ones({3}), 0, 3))},
            .any_dtype = true};
  }
};

template <> struct Samples<Cat> {
  static Case along(std::string name, int dim, std::vector<Shape> shapes) {
    Case test{.name = std::move(name),
              .inputs = {},
              .call = [dim](const Tensors& in) { return cat(in, dim); },
              .oracle =
                  [dim](const Arrays& in) {
                    Shape shape = in[0].shape;
                    const int d = dim < 0 ? dim + shape.rank() : dim;
                    for (std::size_t k = 1; k < in.size(); ++k) shape[d] += in[k].shape[d];
                    return array_of(shape, [&](Dims i) {
                      std::size_t k = 0;
                      while (i[d] >= in[k].shape[d]) i[d] -= in[k++].shape[d];
                      return in[k][i];
                    });
                  }};
    for (const Shape& shape : shapes) test.inputs.push_back({.shape = shape});
    return test;
  }
  static OpSamples make() {
    Case stacked = along("stack", 1, {{3, 2}, {3, 2}});
    stacked.call = [](const Tensors& in) { return stack(in, 1); };
    stacked.oracle = [](const Arrays& in) {
      return array_of({3, 2, 2}, [&](const Dims& i) { return in[std::size_t(i[1])](i[0], i[2]); });
    };
    return {
        .cases = {along("rows", 0, {{2, 3}, {1, 3}, {4, 3}}),
                  along("columns", -1, {{2, 3}, {2, 1}}),
                  along("middle", 1, {{2, 1, 3}, {2, 2, 3}}),
                  along("with an empty one", 0, {{2, 3}, {0, 3}}), along("alone", 0, {{2, 3}}),
                  stacked},
        .errors = {REFUSES(UsageError, "[cat] got no input. Pass at least one tensor.", cat({})),
                   REFUSES(ShapeError,
                           "[cat] inputs are [2, 3] f32 and [2, 4] f32; they may differ "
                           "in dimension 0 only. Reshape or pad them.",
                           cat({ones({2, 3}), ones({2, 4})})),
                   REFUSES(ShapeError, "[cat] inputs are [2, 3] f32 and [3] f32; they may differ",
                           cat({ones({2, 3}), ones({3})})),
                   REFUSES(ShapeError,
                           "[cat] scalars have no dimension to join along. Use stack().",
                           cat({ones({}), ones({})})),
                   REFUSES(ShapeError, "[stack] inputs are [2] f32 and [3] f32. Shapes must agree.",
                           stack({ones({2}), ones({3})}))},
        .any_dtype = true};
  }
};

template <> struct Samples<Pad> {
  static Case by(std::string name, const Shape& shape, const Dims& pairs, double value) {
    return {.name = std::move(name),
            .inputs = {{.shape = shape}},
            .call = [=](const Tensors& in) { return pad(in[0], pairs, value); },
            .oracle =
                [=](const Arrays& in) {
                  const int rank = shape.rank();
                  Shape result = shape;
                  for (int i = 0; i < pairs.rank(); ++i) result[rank - 1 - i / 2] += pairs[i];
                  Array y(result, value);
                  each_index(shape, [&](Dims i) {
                    const double x = in[0][i];
                    bool inside = true;
                    for (int k = 0; k < pairs.rank(); k += 2) {
                      int64_t& place = i[rank - 1 - k / 2];
                      place += pairs[k];
                      inside = inside && place >= 0 && place < result[rank - 1 - k / 2];
                    }
                    if (inside) y[i] = x;
                  });
                  return y;
                }};
  }
  static OpSamples make() {
    return {
        .cases = {by("last dimension", {3, 4}, {1, 2}, 0),
                  by("border", {2, 3, 3}, {1, 1, 2, 0}, -1.5),
                  by("image", {2, 2, 3, 3}, {1, 2, 0, 1}, 0.5), by("nothing", {2, 3}, {0, 0}, 1),
                  by("around nothing", {0, 2}, {1, 1, 1, 0}, 2),
                  by("cut away", {3, 5}, {-1, 2, 1, -2}, 0.5),
                  by("everything cut away", {3, 2}, {-1, -1}, 0)},
        .errors = {REFUSES(ShapeError,
                           "[pad] padding [1] for [2, 3] f32. Give pairs (before, after) "
                           "from the last dimension backwards; negative ones cut away no more "
                           "than there is.",
                           pad(ones({2, 3}), {1})),
                   REFUSES(ShapeError, "[pad] padding [-2, -2] for [2, 3] f32.",
                           pad(ones({2, 3}), {-2, -2})),
                   REFUSES(ShapeError, "[pad] padding [9223372036854775807, 0] for [2, 3] f32.",
                           pad(ones({2, 3}), {INT64_MAX, 0}))},
        .any_dtype = true};
  }
};

template <> struct Samples<Contiguous> {
  static OpSamples make() {
    const auto same = [](const Dims& i) { return i; };
    const auto swapped = [](const Dims& i) { return Dims{i[1], i[0]}; };
    return {.cases = {moved(
                          "as it is", {3, 4}, {3, 4}, [](const Tensor& x) { return contiguous(x); },
                          same),
                      moved(
                          "of a transpose", {3, 4}, {4, 3},
                          [](const Tensor& x) { return contiguous(transpose(x, 0, 1)); }, swapped)},
            .errors = {REFUSES(UsageError, "[contiguous] the input is undefined. Pass a tensor.",
                               contiguous({}))},
            .any_dtype = true};
  }
};

// Samples of embedding, dropout and checkpoint.

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
            REFUSES(
                UsageError,
                "[embedding] index 5 is out of range for a table of 5 rows. Indices must be from "
                "0 to 4.",
                embedding(full({2}, 5, i64), ones({5, 3}))),
            REFUSES(UsageError, "[embedding] index -1 is out of range",
                    embedding(full({2}, -1, i64), ones({5, 3}))),
            REFUSES(DTypeError,
                    "[embedding] indices must be i64 or i32, got [2] f32. Cast it first.",
                    embedding(ones({2}), ones({5, 3}))),
            REFUSES(ShapeError, "[embedding] the table is [5] f32, of rank 1. It must have rank 2.",
                    embedding(zeros({2}, i64), ones({5})))}};
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
    return {
        .cases = {with("a half", {5, 7}, 0.5), with("a little", {4, 9}, 0.1),
                  with("almost all", {40}, 0.9), with("nothing", {3, 4}, 0),
                  with("everything", {3, 4}, 1), with("long", {3, 701}, 0.3),
                  with("empty", {0, 3}, 0.5)},
        .errors = {REFUSES(UsageError, "[dropout] p is 1.5. It must be on [0, 1].",
                           dropout(ones({2}), 1.5)),
                   REFUSES(UsageError, "[dropout] p is nan.", dropout(ones({2}), std::nan("")))}};
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

// Samples of quantize. Unscaled grids, which every dtype holds; blocks, scales and rotations are in
// tests/backends/quantize_test.cpp, to the bit.

template <> struct Samples<Quantize> {
  /// The nearest of all numbers of the grid; of two, the one with the even place, which is the even
  /// significand.
  static double nearest(const NumberFormat& format, double x) {
    const double magnitude = std::abs(x);
    const int64_t count = count_of_numbers(format);
    int64_t best = 0;
    for (int64_t i = 1; i < count; ++i) {
      const double now = std::abs(number_at(format, i) - magnitude),
                   before = std::abs(number_at(format, best) - magnitude);
      if (now < before || (now == before && i % 2 == 0)) best = i;
    }
    return std::copysign(number_at(format, best), x);
  }
  static Case with(std::string name, const Shape& shape, const char* format) {
    const NumberFormat grid = *number_format_named(format);
    return {.name = std::move(name),
            .inputs = {distinct(shape)},
            .call = [format](const Tensors& in) { return quantize(in[0], format); },
            .oracle =
                [grid](const Arrays& in) {
                  Array y = in[0];
                  for (double& value : y.values) value = nearest(grid, value);
                  return y;
                },
            .smooth = false};
  }
  static Quantizer blocks() { return *quantizer_named("mxfp4"); }
  static OpSamples make() {
    Quantizer history{.grid = formats::e4m3, .scaling = Scaling::delayed()};
    Quantizer rotated{.grid = formats::e2m1, .hadamard = 16};
    Quantizer odd{.grid = formats::e2m1, .hadamard = 12};
    Quantizer few{.grid = formats::e2m1, .random = {.bits = 33}};
    Quantizer tall{.grid = formats::e2m1, .scaling = Scaling::per_block(0, 32)};
    Quantizer two_levels = blocks();
    two_levels.scaling.tensor_level = true;
    Quantizer no_history = history;
    no_history.scaling.history = 0;
    Quantizer margin = history;
    margin.scaling.margin = -1;
    Quantizer least = history;
    least.scaling.least = -1;
    return {
        .cases = {with("e4m3", {5, 7}, "e4m3"), with("e2m1, which saturates", {16, 15}, "e2m1"),
                  with("e3m2", {3, 4, 5}, "e3m2"), with("int8", {40}, "int8"),
                  with("int4, images", {2, 3, 4, 5}, "int4"), with("one number", {}, "e5m2"),
                  with("empty", {0, 3}, "e4m3")},
        .errors = {
            REFUSES(UsageError,
                    "[quantize] there is no number format or quantizer named \"mxfp5\". Did "
                    "you mean \"mxfp",
                    quantize(ones({2}), "mxfp5")),
            REFUSES(UsageError,
                    "[quantize] bf16 does not hold every number of e2m1, blocks of 1x16 with "
                    "e4m3 scales under one of the tensor. Cast the input to f32.",
                    quantize(ones({2}, bf16), "nvfp4")),
            REFUSES(UsageError,
                    "[quantize] f16 does not hold every number of e2m1, blocks of 1x32 with "
                    "e8m0 scales (floor).",
                    quantize(ones({2}, f16), "mxfp4")),
            error<UsageError>(
                "[quantize] scaling is from history, and a single call has no history.",
                [=] { quantize(ones({2}), history); }),
            error<ShapeError>(
                "[quantize] rotations of 16 do not divide the last dimension of [2, 24] "
                "f32.",
                [=] {
                  quantize(ones({2, 24}), rotated);
                }),
            error<UsageError>(
                "[quantize] rotations are of 12 numbers. Choose 2, 4, 8, 16, 32, 64 or 128, "
                "or 0 for none.",
                [=] { quantize(ones({24}), odd); }),
            error<UsageError>("[quantize] stochastic rounding has 33 random bits. Choose 1 to 32.",
                              [=] { quantize(ones({2}), few); }),
            error<UsageError>("[quantize] blocks are of 0 x 32 numbers. Both must be at least 1.",
                              [=] { quantize(ones({2}), tall); }),
            error<UsageError>(
                "[quantize] scales of blocks are e8m0 under a scale of the tensor. Only "
                "short ones, such as e4m3, need that.",
                [=] { quantize(ones({2}), two_levels); }),
            error<UsageError>("[quantize] a history has 0 steps. It must have at least 1.",
                              [=] { quantize(ones({2}), no_history); }),
            error<UsageError>("[quantize] a margin is -1. It must be from 0 to 100.",
                              [=] { quantize(ones({2}), margin); }),
            error<UsageError>(
                "[quantize] the least largest magnitude is -1. It must be finite and not "
                "negative.",
                [=] { quantize(ones({2}), least); }),
            REFUSES(UsageError, "[quantize] a grid has 0 significand bits. Choose 1 to 24.",
                    quantize(ones({2}), Quantizer{.grid = {.significand_bits = 0}}))}};
  }
};

}  // namespace halftone::test
