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
            .errors = {error<UsageError>("[cast] the input is undefined. Pass a tensor.",
                                         [] { cast({}, f32); })},
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
        .errors = {error<ShapeError>("[reshape] [2, 3] f32 does not fit shape [4]. Element counts "
                                     "must agree.",
                                     [] {
                                       reshape(ones({2, 3}), {4});
                                     }),
                   error<ShapeError>("[reshape] [2, 3] f32 does not fit shape [4, 1].",
                                     [] {
                                       reshape(ones({2, 3}), {4, -1});
                                     }),
                   error<ShapeError>("[flatten] start 2 is after end 1 for rank 3. Swap them.",
                                     [] {
                                       flatten(ones({2, 3, 2}), 2, 1);
                                     })},
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
    return {
        .cases = {by("matrix", {3, 5}, {1, 0}), by("cycle", {2, 3, 4}, {2, 0, 1}),
                  by("channels last", {2, 3, 2, 4}, {0, 2, 3, 1}), by("empty", {0, 2}, {1, 0}),
                  by("identity", {2, 3}, {0, 1}), transposed},
        .errors = {error<ShapeError>("[permute] order [0, 0] for [2, 3] f32. Name each dimension "
                                     "exactly once.",
                                     [] {
                                       permute(ones({2, 3}), {0, 0});
                                     }),
                   error<ShapeError>("[permute] order [0] for [2, 3] f32.",
                                     [] {
                                       permute(ones({2, 3}), {0});
                                     }),
                   error<ShapeError>("[permute] dimension 2 is out of range for rank 2.",
                                     [] {
                                       permute(ones({2, 3}), {0, 2});
                                     })},
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
    return {
        .cases = {to("rows", {1, 4}, {3, 4}, {3, 4}),
                  to("new dimensions", {3, 1}, {2, 3, 4}, {2, 3, 4}),
                  to("a scalar", {}, {2, 3}, {2, 3}),
                  to("kept sizes", {2, 1, 3}, {-1, 4, -1}, {2, 4, 3}),
                  to("to nothing", {1, 3}, {0, 3}, {0, 3})},
        .errors = {error<ShapeError>("[expand] [2, 3] f32 does not expand to [4, 3]. Only sizes of "
                                     "1 can grow.",
                                     [] {
                                       expand(ones({2, 3}), {4, 3});
                                     }),
                   error<ShapeError>("[expand] [2, 3] f32 does not expand to [3].",
                                     [] {
                                       expand(ones({2, 3}), {3});
                                     })},
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
    return {
        .cases = {of("rows", {5, 3}, 0, 1, 4, 1, 1, 3), of("columns", {3, 7}, 1, 2, 6, 1, 2, 4),
                  of("every third", {3, 8}, 1, 1, 8, 3, 1, 3),
                  of("from the end", {6, 2}, 0, -3, -1, 1, 3, 2),
                  of("beyond the end", {4, 2}, 0, 2, 99, 1, 2, 2),
                  of("nothing", {4, 2}, 0, 3, 1, 1, 3, 0), one},
        .errors = {error<ShapeError>("[slice] a scalar has no dimensions. Reshape it to [1].",
                                     [] { slice(ones({}), 0, 0, 1); }),
                   error<UsageError>("[slice] step is 0. It must be at least 1.",
                                     [] { slice(ones({3}), 0, 0, 1, 0); }),
                   error<ShapeError>("[slice] dimension 1 is out of range for rank 1. Use -1 to 0.",
                                     [] { slice(ones({3}), 1, 0, 1); }),
                   error<ShapeError>("[select] index 3 is out of range for dimension 0 of [3] f32. "
                                     "Use -3 to 2.",
                                     [] { select(ones({3}), 0, 3); })},
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
        .errors = {error<UsageError>("[cat] got no input. Pass at least one tensor.",
                                     [] { cat({}); }),
                   error<ShapeError>("[cat] inputs are [2, 3] f32 and [2, 4] f32; they may differ "
                                     "in dimension 0 only. Reshape or pad them.",
                                     [] {
                                       cat({ones({2, 3}), ones({2, 4})});
                                     }),
                   error<ShapeError>("[cat] inputs are [2, 3] f32 and [3] f32; they may differ",
                                     [] {
                                       cat({ones({2, 3}), ones({3})});
                                     }),
                   error<ShapeError>("[cat] scalars have no dimension to join along. Use stack().",
                                     [] {
                                       cat({ones({}), ones({})});
                                     }),
                   error<ShapeError>("[stack] inputs are [2] f32 and [3] f32. Shapes must agree.",
                                     [] {
                                       stack({ones({2}), ones({3})});
                                     })},
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
        .errors = {error<ShapeError>(
                       "[pad] padding [1] for [2, 3] f32. Give pairs (before, after) "
                       "from the last dimension backwards; negative ones cut away no more "
                       "than there is.",
                       [] {
                         pad(ones({2, 3}), {1});
                       }),
                   error<ShapeError>("[pad] padding [-2, -2] for [2, 3] f32.",
                                     [] {
                                       pad(ones({2, 3}), {-2, -2});
                                     }),
                   error<ShapeError>("[pad] padding [9223372036854775807, 0] for [2, 3] f32.",
                                     [] {
                                       pad(ones({2, 3}), {INT64_MAX, 0});
                                     })},
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
            .errors = {error<UsageError>("[contiguous] the input is undefined. Pass a tensor.",
                                         [] { contiguous({}); })},
            .any_dtype = true};
  }
};

}  // namespace halftone::test
