// Samples of the products of vectors.
#pragma once

#include "ops/samples_case.h"

namespace halftone::test {

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
            .errors = {error<ShapeError>("[dot] a is [2, 2] f32, of rank 2. It must have rank 1.",
                                         [] {
                                           dot(ones({2, 2}), ones({2}));
                                         }),
                       error<ShapeError>("[dot] a is [2] f32, b is [3] f32. They must have the "
                                         "same number of elements.",
                                         [] { dot(ones({2}), ones({3})); })}};
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
    return {
        .cases = {of("rows", {3, 5}, {3, 5}, {3, 5}, 1),
                  of("the first dimension", {5, 2}, {5, 2}, {5, 2}, 0),
                  of("the middle", {2, 7, 3}, {2, 7, 3}, {2, 7, 3}, -2),
                  of("broadcast", {4, 1, 6}, {3, 6}, {4, 3, 6}, -1),
                  of("norms below eps", {2, 3}, {2, 3}, {2, 3}, 1, 100)},
        .errors = {error<ShapeError>("[cosine_similarity] dimension 2 is out of range for rank 2. "
                                     "Use -2 to 1.",
                                     [] {
                                       cosine_similarity(ones({2, 2}), ones({2, 2}), 2);
                                     }),
                   error<UsageError>("[cosine_similarity] eps is 0. It must be positive.", [] {
                     cosine_similarity(ones({2, 2}), ones({2, 2}), 1, 0);
                   })}};
  }
};

}  // namespace halftone::test
