// Samples of gather, scatter_add, argsort and flip.
#pragma once

#include <algorithm>
#include <numeric>

#include "ops/samples_case.h"

namespace halftone::test {

/// The position that an index names, from the position of the index.
inline Dims named_by(const Arrays& in, Dims i, int dim) {
  if (i.rank() > 0) i[dim] = int64_t(in[1][i]);
  return i;
}

template <> struct Samples<Gather> {
  static Case of(std::string name, const Shape& x, int dim, const Shape& shape, Values index) {
    const int d = dim < 0 ? dim + x.rank() : dim;
    return {.name = std::move(name),
            .inputs = {{.shape = x}, integers(shape, std::move(index))},
            .call = [dim](const Tensors& in) { return gather(in[0], dim, in[1]); },
            .oracle =
                [=](const Arrays& in) {
                  return array_of(shape, [&](const Dims& i) { return in[0][named_by(in, i, d)]; });
                },
            .reduced = numel_of(shape)};
  }
  /// index_select uses this operation.
  static Case select_case(std::string name, const Shape& x, int dim, Values index) {
    const int d = dim < 0 ? dim + x.rank() : dim;
    Shape result = x;
    result[d] = int64_t(index.size());
    return {.name = std::move(name),
            .inputs = {{.shape = x}, integers({int64_t(index.size())}, index)},
            .call = [dim](const Tensors& in) { return index_select(in[0], dim, in[1]); },
            .oracle =
                [=](const Arrays& in) {
                  return array_of(result, [&](Dims i) {
                    i[d] = int64_t(in[1](i[d]));
                    return in[0][i];
                  });
                },
            .reduced = int64_t(index.size())};
  }
  static OpSamples make() {
    const auto bad = [](std::initializer_list<double> index, const Shape& shape, DType dtype) {
      return [=, values = Values(index)] {
        gather(ones({2, 3}), 1, from_vector(values, shape, dtype));
      };
    };
    return {
        .cases = {of("columns", {3, 4}, 1, {3, 2}, {0, 3, 1, 1, 2, 0}),
                  of("rows", {3, 4}, 0, {2, 4}, {2, 0, 1, 1, 0, 0, 2, 2}),
                  of("fewer of the others", {2, 3, 4}, -1, {1, 2, 5},
                     {3, 3, 0, 1, 2, 0, 0, 0, 0, 1}),
                  of("one place often", {4}, 0, {6}, {1, 1, 3, 1, 1, 0}),
                  of("a scalar", {}, 0, {}, {0}), of("nothing", {2, 3}, 1, {2, 0}, {}),
                  select_case("select, middle", {2, 4, 3}, 1, {3, 0, 0}),
                  select_case("select, last", {3, 4}, -1, {2, 1, 2, 0, 3})},
        .errors = {error<UsageError>("[gather] index 3 is out of range for a dimension of size 3. "
                                     "Indices must be from 0 to 2.",
                                     bad({0, 3}, {1, 2}, i64)),
                   error<UsageError>("[gather] index -1 is out of range", bad({-1}, {1, 1}, i32)),
                   error<DTypeError>("[gather] the index must be i64 or i32, got [1, 1] f32.",
                                     bad({0}, {1, 1}, f32)),
                   error<ShapeError>(
                       "[gather] the index is [3, 1] for [2, 3] f32 along dimension 1. "
                       "It must have the same rank, and in other dimensions sizes up "
                       "to those.",
                       bad({0, 0, 0}, {3, 1}, i64)),
                   error<ShapeError>("[gather] the index is [1] for", bad({0}, {1}, i64)),
                   error<UsageError>("[index_select] index 2 is out of range",
                                     [] { index_select(ones({2}), 0, full({1}, 2, i64)); }),
                   error<ShapeError>("[index_select] the index is [1, 1] i64. It must be a vector.",
                                     [] {
                                       index_select(ones({2}), 0, zeros({1, 1}, i64));
                                     })},
        .any_dtype = true};
  }
};

template <> struct Samples<ScatterAdd> {
  static Case of(std::string name, const Shape& x, int dim, const Shape& shape, Values index,
                 Shape source = {}) {
    const int d = dim < 0 ? dim + x.rank() : dim;
    if (source.empty()) source = shape;
    return {.name = std::move(name),
            .inputs = {{.shape = x}, integers(shape, std::move(index)), {.shape = source}},
            .call = [dim](const Tensors& in) { return scatter_add(in[0], dim, in[1], in[2]); },
            .oracle =
                [=](const Arrays& in) {
                  Array y = in[0];
                  each_index(shape, [&](const Dims& i) { y[named_by(in, i, d)] += in[2][i]; });
                  return y;
                },
            .reduced = numel_of(shape)};
  }
  static OpSamples make() {
    const auto bad = [](double index, const Shape& shape, const Shape& source) {
      return [=] { scatter_add(ones({2, 3}), 1, full(shape, index, i64), ones(source)); };
    };
    return {
        .cases = {of("columns", {3, 4}, 1, {3, 2}, {0, 3, 1, 1, 2, 0}),
                  of("rows", {3, 4}, 0, {2, 4}, {2, 0, 1, 1, 0, 0, 2, 2}),
                  of("a larger source", {2, 3, 4}, -1, {1, 2, 3}, {3, 3, 0, 2, 0, 1}, {2, 3, 3}),
                  of("all to one place", {4}, 0, {7}, {2, 2, 2, 2, 2, 2, 2}),
                  of("a scalar", {}, 0, {}, {0}), of("nothing", {2, 3}, 1, {2, 0}, {})},
        .errors =
            {error<UsageError>("[scatter_add] index 3 is out of range for a dimension of size 3.",
                               bad(3, {1, 1}, {1, 1})),
             error<ShapeError>("[scatter_add] the index is [2, 2] i64, the source [2, 1] f32. The "
                               "source must be as large in every dimension.",
                               bad(0, {2, 2}, {2, 1})),
             error<ShapeError>("[scatter_add] the index is [3, 1] for", bad(0, {3, 1}, {3, 1}))},
        .any_dtype = true,
        .mixed = Mixed::refuses};
  }
};

template <> struct Samples<ArgSort> {
  static Case of(std::string name, const Shape& shape, int dim, bool descending,
                 Values given = {}) {
    const int d = dim < 0 ? dim + shape.rank() : dim;
    Input input{.shape = shape, .kind = InputKind::constant, .distinct = given.empty()};
    input.given = std::move(given);
    return {.name = std::move(name),
            .inputs = {input},
            .call = [=](const Tensors& in) { return argsort(in[0], dim, descending); },
            .oracle =
                [=](const Arrays& in) {
                  return array_of(shape, [&](const Dims& i) {
                    if (shape.rank() == 0) return 0.0;
                    Values row;
                    Dims at = i;
                    for (at[d] = 0; at[d] < shape[d]; ++at[d]) row.push_back(in[0][at]);
                    std::vector<int> order(row.size());
                    std::iota(order.begin(), order.end(), 0);
                    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
                      const double u = row[std::size_t(a)], v = row[std::size_t(b)];
                      return descending ? u > v : u < v;
                    });
                    return double(order[std::size_t(i[d])]);
                  });
                },
            .output = i64,
            .gradient = false};
  }
  static OpSamples make() {
    const Values ties{1, 0, 1, -2, 0, 1, -2, 1};
    Case whole = of("integers", {2, 4}, 1, false);
    whole.inputs[0] = integers({2, 4}, {5, -70000, 70000, 5, -1, 0, -1, 1});
    return {.cases = {of("rows", {4, 7}, -1, false), of("rows, descending", {4, 7}, 1, true),
                      of("columns", {7, 4}, 0, false), of("middle", {2, 5, 3}, 1, true),
                      of("equals keep their order", {8}, 0, false, ties),
                      of("also when descending", {8}, 0, true, ties), of("a scalar", {}, 0, false),
                      of("nothing", {3, 0}, 1, false), of("a long row", {3, 701}, 1, false),
                      of("many rows", {300, 3}, 1, true), whole},
            .errors = {error<ShapeError>(
                "[argsort] dimension 2 is out of range for rank 2. Use -2 to 1.",
                [] {
                  argsort(ones({2, 3}), 2);
                })},
            .any_dtype = true};
  }
};

template <> struct Samples<Flip> {
  static Case of(std::string name, const Shape& shape, const Dims& dims) {
    return {.name = std::move(name),
            .inputs = {{.shape = shape}},
            .call = [dims](const Tensors& in) { return flip(in[0], dims); },
            .oracle =
                [=](const Arrays& in) {
                  return array_of(shape, [&](Dims i) {
                    for (int64_t dim : dims) {
                      const int d = int(dim < 0 ? dim + shape.rank() : dim);
                      i[d] = shape[d] - 1 - i[d];
                    }
                    return in[0][i];
                  });
                }};
  }
  static OpSamples make() {
    return {.cases = {of("rows", {3, 4}, {0}), of("columns", {3, 4}, {-1}),
                      of("both", {3, 4}, {0, 1}), of("images", {2, 3, 4, 5}, {2, 3}),
                      of("a long one", {3, 701}, {1}), of("a matrix", {40, 50}, {0}),
                      of("none", {2, 3}, {}), of("nothing", {0, 3}, {0, 1})},
            .errors = {error<ShapeError>("[flip] dimension 1 is given twice in [1, -1].",
                                         [] {
                                           flip(ones({2, 3}), {1, -1});
                                         })},
            .any_dtype = true};
  }
};

}  // namespace halftone::test
