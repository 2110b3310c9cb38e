// Samples of linear algebra. Signs of factors are not unique, so cases compute what does not depend
// on them: products, inverses from factors, triangular factors with a positive diagonal.
#pragma once

#include <cmath>

#include "ops/samples_case.h"

namespace halftone::test {

/// A matrix of doubles.
struct Matrix {
  int64_t m, n;
  Values v;
  Matrix(int64_t rows, int64_t columns) : m(rows), n(columns), v(std::size_t(m * n)) {}
  double& operator()(int64_t i, int64_t j) { return v[std::size_t(i * n + j)]; }
  double operator()(int64_t i, int64_t j) const { return v[std::size_t(i * n + j)]; }
  Matrix transposed() const {
    Matrix t(n, m);
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) t(j, i) = (*this)(i, j);
    return t;
  }
  Matrix times(const Matrix& b) const {
    Matrix y(m, b.n);
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < b.n; ++j)
        for (int64_t k = 0; k < n; ++k) y(i, j) += (*this)(i, k) * b(k, j);
    return y;
  }
  /// x with this x = b, by Gauss and Jordan with pivots.
  Matrix solved(Matrix b) const {
    Matrix a = *this;
    for (int64_t c = 0; c < n; ++c) {
      int64_t best = c;
      for (int64_t i = c; i < n; ++i)
        if (std::abs(a(i, c)) > std::abs(a(best, c))) best = i;
      for (int64_t j = 0; j < n; ++j) std::swap(a(c, j), a(best, j));
      for (int64_t j = 0; j < b.n; ++j) std::swap(b(c, j), b(best, j));
      for (int64_t i = 0; i < n; ++i) {
        if (i == c) continue;
        const double factor = a(i, c) / a(c, c);
        for (int64_t j = 0; j < n; ++j) a(i, j) -= factor * a(c, j);
        for (int64_t j = 0; j < b.n; ++j) b(i, j) -= factor * b(c, j);
      }
    }
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < b.n; ++j) b(i, j) /= a(i, i);
    return b;
  }
  Matrix inverse() const {
    Matrix one(n, n);
    for (int64_t i = 0; i < n; ++i) one(i, i) = 1;
    return solved(one);
  }
  /// The lower l with this = l l^T.
  Matrix cholesky() const {
    Matrix l(n, n);
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j <= i; ++j) {
        double sum = (*this)(i, j);
        for (int64_t k = 0; k < j; ++k) sum -= l(i, k) * l(j, k);
        l(i, j) = i == j ? std::sqrt(sum) : sum / l(j, j);
      }
    return l;
  }
};

/// The result of `f` for each matrix of a batch; the second input is a right side or is absent.
template <class F> Array each_matrix_of(const Arrays& in, const F& f) {
  const auto at = [](const Array& x, int64_t i) {
    Matrix a(x.size(x.shape.rank() - 2), x.size(x.shape.rank() - 1));
    std::copy_n(x.values.begin() + i * a.m * a.n, a.m * a.n, a.v.begin());
    return a;
  };
  const Shape& shape = in[0].shape;
  Shape result = shape;
  Values values;
  int64_t count = 1;
  for (int d = 0; d < shape.rank() - 2; ++d) count *= shape[d];
  for (int64_t i = 0; i < count; ++i) {
    const Matrix y = f(at(in[0], i), in.size() > 1 ? at(in[1], i) : Matrix(0, 0));
    result[shape.rank() - 2] = y.m, result[shape.rank() - 1] = y.n;
    values.insert(values.end(), y.v.begin(), y.v.end());
  }
  return {result, values};
}

/// Small numbers plus 3, 5, 7, ... on the diagonal: far from singular, with different singular
/// values. Given as values, because an operation in a case would round and cast.
inline Input far_from_singular(const Shape& shape) {
  const int64_t m = shape[shape.rank() - 2], n = shape[shape.rank() - 1];
  Draw draw(uint64_t(m * 100 + n));
  Values values(std::size_t(numel_of(shape)));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const int64_t row = int64_t(i) / n % m, column = int64_t(i) % n;
    values[i] = draw.uniform(-0.5, 0.5) + (row == column ? 3 + 2 * double(row) : 0);
  }
  return {.shape = shape, .given = values};
}
/// The lower triangle and its mirror image: what operations on symmetric matrices read.
inline Matrix mirrored(const Matrix& x) {
  Matrix y = x;
  for (int64_t i = 0; i < x.m; ++i)
    for (int64_t j = i + 1; j < x.n; ++j) y(i, j) = x(j, i);
  return y;
}
/// a b without matmul, which casting policies would see.
inline Tensor product(const Tensor& a, const Tensor& b) {
  return sum(unsqueeze(a, -1) * unsqueeze(b, -3), {-2});
}

template <class Call, class Of>
Case matrix_case(std::string name, const Shape& shape, Call call, Of of) {
  return {.name = std::move(name),
          .inputs = {far_from_singular(shape)},
          .call = [call](const Tensors& in) { return call(in[0]); },
          .oracle =
              [of](const Arrays& in) {
                return each_matrix_of(in, [&](const Matrix& a, const Matrix&) { return of(a); });
              },
          .reduced = 8,
          .any_strides = false,  // a layout that repeats rows is singular; see linalg_test.cpp
          .roundings = 3,
          .condition = 8};
}
template <class Call, class Of>
std::vector<Case> matrix_cases(const std::vector<Shape>& shapes, const Call& call, const Of& of) {
  std::vector<Case> cases;
  for (const Shape& shape : shapes) {
    std::ostringstream name;
    name << shape;
    cases.push_back(matrix_case(name.str(), shape, call, of));
  }
  return cases;
}
#define REFUSES_NO_MATRIX(name, call)                                                \
  REFUSES(ShapeError, "[" name "] [3] f32 is not a matrix. It must be [..., m, n].", \
          linalg::call(ones({3})))
#define REFUSES_NO_SQUARE(name, call)                                                 \
  REFUSES(ShapeError, "[" name "] [2, 3] f32 is not square. It must be [..., n, n].", \
          linalg::call(ones({2, 3})))

template <> struct Samples<Inverse> {
  static OpSamples make() {
    return {.cases = matrix_cases(
                {{4, 4}, {2, 3, 5, 5}, {1, 1}}, [](const Tensor& x) { return linalg::inv(x); },
                [](const Matrix& a) { return a.inverse(); }),
            .errors = {REFUSES_NO_MATRIX("inv", inv), REFUSES_NO_SQUARE("inv", inv),
                       REFUSES(UsageError, "[inv] matrix 0 of the batch is singular: pivot 1 is 0.",
                               linalg::inv(ones({2, 2})))}};
  }
};

template <> struct Samples<Solve> {
  static Case of(std::string name, const Shape& a, const Shape& b) {
    return {.name = std::move(name),
            .inputs = {far_from_singular(a), {.shape = b}},
            .call = [](const Tensors& in) { return linalg::solve(in[0], in[1]); },
            .oracle =
                [](const Arrays& in) {
                  return each_matrix_of(in, [](const Matrix& left, const Matrix& right) {
                    return left.solved(right);
                  });
                },
            .reduced = 8,
            .any_strides = false,
            .roundings = 2,
            .condition = 8};
  }
  static OpSamples make() {
    return {.cases = {of("one", {4, 4}, {4, 3}), of("a batch", {2, 5, 5}, {2, 5, 1})},
            .errors = {REFUSES(ShapeError, "[solve] a is [2, 2] f32, b is [3, 1] f32.",
                               linalg::solve(ones({2, 2}), ones({3, 1}))),
                       REFUSES(UsageError, "[solve] matrix 0 of the batch is singular",
                               linalg::solve(zeros({2, 2}), ones({2, 1})))}};
  }
};

/// Gradients of functions of the lower triangle are symmetric, as PyTorch's: difference quotients
/// are not. linalg_test.cpp has these.
inline std::vector<Case> without_quotients(std::vector<Case> cases) {
  for (Case& test : cases) test.smooth = false;
  return cases;
}

template <> struct Samples<Cholesky> {
  static OpSamples make() {
    const auto call = [](const Tensor& x) { return linalg::cholesky(x); };
    return {
        .cases = without_quotients(matrix_cases(
            {{4, 4}, {2, 3, 3}}, call, [](const Matrix& a) { return mirrored(a).cholesky(); })),
        .errors = {
            REFUSES_NO_SQUARE("cholesky", cholesky),
            REFUSES(UsageError, "[cholesky] matrix 1 of the batch is not positive definite.",
                    linalg::cholesky(from_vector<float>({1, 0, 0, 1, 1, 0, 2, 1}, {2, 2, 2})))}};
  }
};

template <> struct Samples<Qr> {
  /// R with a positive diagonal.
  static Tensor call(const Tensor& x) {
    const auto [q, r] = linalg::qr(x);
    return r * unsqueeze(sign(diagonal(r, 0, -2, -1)), -1);
  }
  static OpSamples make() {
    std::vector<Case> cases = matrix_cases({{4, 4}, {6, 3}, {2, 5, 4}}, call, [](const Matrix& a) {
      return a.transposed().times(a).cholesky().transposed();
    });
    const auto wide = [](const Matrix& a) {  // r = q^T a, q^T = (l^-1) of the square's columns
      Matrix square(a.m, a.m);
      for (int64_t i = 0; i < a.m; ++i)
        for (int64_t j = 0; j < a.m; ++j) square(i, j) = a(i, j);
      const Matrix l = square.transposed().times(square).cholesky();
      return l.solved(square.transposed().times(a));
    };
    for (Case& test : matrix_cases({{3, 5}, {2, 2, 6}}, call, wide)) cases.push_back(test);
    // q alone: a r^-1 = q, up to signs.
    cases.push_back(matrix_case(
        "q", {5, 3},
        [](const Tensor& x) {
          const auto [q, r] = linalg::qr(x);
          return q * unsqueeze(sign(diagonal(r, 0, -2, -1)), -2);
        },
        [](const Matrix& a) {
          return a.transposed().times(a).cholesky().solved(a.transposed()).transposed();
        }));
    return {.cases = cases, .errors = {REFUSES_NO_MATRIX("qr", qr)}};
  }
};

template <> struct Samples<Svd> {
  static OpSamples make() {
    // The pseudoinverse.
    const auto call = [](const Tensor& x) {
      const auto [u, s, vh] = linalg::svd(x);
      return product(transpose(vh, -2, -1) / unsqueeze(s, -2), transpose(u, -2, -1));
    };
    const auto of = [](const Matrix& a) {
      const Matrix t = a.transposed();
      return a.m >= a.n ? t.times(a).solved(t) : a.times(t).solved(a).transposed();
    };
    return {.cases = matrix_cases({{4, 4}, {6, 3}, {3, 5}, {2, 3, 2}}, call, of),
            .errors = {REFUSES_NO_MATRIX("svd", svd),
                       REFUSES(UsageError, "[svd] [1, 2] f32 has elements that are not finite.",
                               linalg::svd(from_vector<float>({1, INFINITY}, {1, 2})))}};
  }
};

template <> struct Samples<Eigh> {
  static OpSamples make() {
    const auto call = [](const Tensor& x) {
      const auto [values, vectors] = linalg::eigh(x);
      return product(vectors / unsqueeze(values, -2), transpose(vectors, -2, -1));
    };
    return {.cases = without_quotients(matrix_cases(
                {{4, 4}, {2, 3, 3}}, call, [](const Matrix& a) { return mirrored(a).inverse(); })),
            .errors = {REFUSES_NO_SQUARE("eigh", eigh)}};
  }
};

}  // namespace halftone::test
