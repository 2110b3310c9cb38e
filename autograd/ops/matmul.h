// Products: of matrices, of vectors, and by letters.
#pragma once

#include <string_view>
#include <vector>

#include <halftone/autograd/ops/reduce.h>

namespace halftone {

// Matrix products. The kernel takes strides, so a transposed operand is a view, never a copy, and
// each gradient is a product of the same kind:  c = a b   =>   da = dc b^T,  db = a^T dc.

namespace detail {
/// Returns x itself if one of the last two dimensions has unit stride, else a row-major copy: the
/// layout that kernels take.
inline Tensor matrix_layout(const Tensor& x) {
  const int r = x.rank();
  const int64_t row = x.strides()[r - 2], column = x.strides()[r - 1];
  const int64_t rows = x.shape()[r - 2], columns = x.shape()[r - 1];
  const bool row_major = (column == 1 || columns == 1) && (row >= columns || rows == 1);
  const bool column_major = (row == 1 || rows == 1) && (column >= rows || columns == 1);
  return row_major || column_major ? x : views::contiguous(x);
}
inline Tensor transposed(const Tensor& x) {
  return views::transpose(x, x.rank() - 2, x.rank() - 1);
}
/// Returns a matrix whose rows are those of `numbers` [rows, k] with a scale after each `block` of
/// them, as an accumulator with scales reads them: f32, a multiple of block + 1 columns. scales:
/// f32 [rows, blocks]. Numbers of a last block that are missing are 0.
Tensor with_scales(const Tensor& numbers, const Tensor& scales, int64_t block);
/// c = a b + bias, in an emulated accumulator, or in hardware. For an accumulator with scales, a
/// and b have scales along k (waiting_operand() in core/pending.h). If one has f32 numbers and a
/// factor, the sums are of numbers, and are multiplied by the factor.
void multiply_accumulating(const Tensor& a, const Tensor& b, const Tensor& bias,
                           const Accumulator& accumulator, Tensor& c);
/// c = a b + bias, in an accumulator if there is one (not for f64).
inline void multiply(const Tensor& a, const Tensor& b, const Tensor& bias,
                     const std::optional<Accumulator>& accumulator, Tensor& c) {
  if (!accumulator || a.dtype() == f64) return backend_for(a).matmul(a, b, bias, c);
  multiply_accumulating(a, b, bias, *accumulator, c);
}
}  // namespace detail

/// c[.., m, n] = a[.., m, k] b[.., k, n] of rank 2 or more; leading dimensions broadcast. The
/// gradient of a matrix that serves several products is summed in f32 or wider and rounded once.
struct Matmul {
  static constexpr Contraction sums{.forward = {Sums::over_last, Sums::over_rows},
                                    .backward = {Sums::over_rows, Sums::over_last},
                                    .gradient = {Sums::over_last, Sums::over_rows}};
  static double flops(std::span<const Tensor> inputs);
  static constexpr OpInfo info{
      "matmul",
      CastClass::low_precision,
      cast_reason::products,
      {.accumulator = true, .tf32 = true, .factors = true, .sums = sums, .flops = flops}};
  static constexpr std::array wide_gradients{true, true};
  Tensor a{}, b{};                      // rank 2, or rank 3 with one batch size
  Shape batch{}, a_shape{}, b_shape{};  // the batch of the result, and the inputs' shapes
  Needs<2> needs{};
  std::optional<Accumulator> accumulate{};  // for all three products; absent: the kernel's own

  Tensor forward(const Tensor& a_in, const Tensor& b_in);
  void save(const Tensor& a_in, const Tensor& b_in);
  std::array<Tensor, 2> backward(const Tensor& dc_in) const;
  std::vector<Tensor> recorded_backward(const Tensor& dc, const History& history) const;
  /// Returns the gradient of input `which` (0: a, 1: b): the products x y, one for each of the
  /// batch, summed over those that read the same matrix.
  Tensor gradient(int which, const Tensor& x, const Tensor& y) const;

  static Tensor product(const Tensor& a, const Tensor& b, DType dtype,
                        const std::optional<Accumulator>& accumulator = {}) {
    Shape shape = a.shape();
    shape[a.rank() - 1] = b.shape()[b.rank() - 1];
    Tensor c = empty(shape, dtype, a.device());
    detail::multiply(a, b, {}, accumulator, c);
    return c;
  }
};

/// y = x weight^T + bias, x: [.., in], weight: [out, in], bias: [out] or undefined.
struct Linear {
  static constexpr Contraction sums{.forward = {Sums::over_last, Sums::over_last},
                                    .backward = {Sums::over_tokens, Sums::over_tokens},
                                    .gradient = {Sums::over_last, Sums::over_tokens}};
  static double flops(std::span<const Tensor> inputs);
  static constexpr OpInfo info{
      "linear",
      CastClass::low_precision,
      cast_reason::products,
      {.accumulator = true, .tf32 = true, .factors = true, .sums = sums, .flops = flops}};
  static constexpr std::array wide_gradients{true, true, true};
  Tensor x{}, weight{};
  Shape shape{};
  Needs<3> needs{};
  std::optional<Accumulator> accumulate{};  // as Matmul's

  void save(const Tensor& input, const Tensor& w, const Tensor& /*bias*/) {
    shape = input.shape();
    x = detail::matrix_layout(views::reshaped(input, {rows_of(input.shape()), w.shape()[1]}));
    weight = detail::matrix_layout(w);
  }
  Tensor forward(const Tensor& input, const Tensor& w, const Tensor& bias) {
    check_inputs(input, w, bias);
    save(input, w, bias);
    Shape result = shape;
    result[shape.rank() - 1] = w.shape()[0];
    Tensor y = empty(result, x.dtype(), x.device());
    Tensor rows = y.view_as({x.shape()[0], w.shape()[0]}, {w.shape()[0], 1}, 0);
    detail::multiply(x, detail::transposed(weight), bias.defined() ? views::contiguous(bias) : bias,
                     accumulate, rows);
    return y;
  }
  std::array<Tensor, 3> backward(const Tensor& dy_in) const {
    const int64_t out = weight.shape()[0];
    const Tensor dy = detail::matrix_layout(views::reshaped(dy_in, {x.shape()[0], out}));
    Tensor dx, dweight, dbias;
    if (needs[0])
      dx = detail::as_shape(Matmul::product(dy, weight, needs.dtype(0), accumulate), shape);
    if (needs[1]) dweight = Matmul::product(detail::transposed(dy), x, needs.dtype(1), accumulate);
    if (needs[2]) dbias = reduce_to(dy, {1, out}, needs.dtype(2)).view_as({out}, {1}, 0);
    return {dx, dweight, dbias};
  }
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;

  static void check_inputs(const Tensor& x, const Tensor& w, const Tensor& bias) {
    check::floating("linear", x);
    check::rank("linear", "weight", w, 2);
    check::same_dtype("linear", x, w);
    if (x.rank() == 0 || x.shape()[x.rank() - 1] != w.shape()[1])
      fail<ShapeError>("linear", "inner sizes differ: x is ", described(x), ", weight is ",
                       described(w), "; x.size(-1) must equal weight.size(1).");
    check::vector_of("linear", "bias", bias, w.shape()[0]);
    if (bias.defined()) check::same_dtype("linear", x, bias);
  }
};

/// As torch.matmul: vectors, matrices and batches with broadcasting; also integers of one dtype.
Tensor matmul(const Tensor& a, const Tensor& b);
/// As torch.nn.functional.linear. The bias is inside: as an f32 operation of its own it would
/// promote low-precision results.
inline Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {}) {
  return apply(Linear{}, x, weight, bias);
}

// Products of vectors, operations of their own because casting policies name them. Made of other
// operations, dot would return the f32 of a sum, and cosine_similarity would multiply short floats.

/// sum_i a[i] b[i] of two vectors, accumulated in f32 or wider.
struct Dot {
  static constexpr OpInfo info{"dot", CastClass::widest_input, cast_reason::several_inputs};
  Tensor a{}, b{};
  Needs<2> needs{};

  Tensor forward(const Tensor& a_in, const Tensor& b_in) {
    check::rank("dot", "a", a_in, 1);
    check::rank("dot", "b", b_in, 1);
    check::floating("dot", a_in);
    check::floating("dot", b_in);
    check::same_dtype("dot", a_in, b_in);
    a = views::contiguous(a_in), b = views::contiguous(b_in);
    const int64_t n = a.numel();
    if (b.numel() != n)
      fail<ShapeError>("dot", "a is ", described(a), ", b is ", described(b),
                       ". They must have the same number of elements.");
    const Tensor row = detail::as_shape(a, {1, n}), column = detail::as_shape(b, {n, 1});
    return detail::as_shape(Matmul::product(row, column, a.dtype()), {});
  }
  std::array<Tensor, 2> backward(const Tensor& dy) const {
    return {needs[0] ? b * dy : Tensor{}, needs[1] ? a * dy : Tensor{}};
  }
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;
};

/// a . b / (max(|a|, eps) max(|b|, eps)) along one dimension, in f32 or wider. A norm below eps is
/// a constant also for the gradient, whereas PyTorch differentiates the norm as if it were not
/// bounded.
struct CosineSimilarity {
  static constexpr OpInfo info{"cosine_similarity", CastClass::full_precision,
                               cast_reason::deviations};
  int dim;
  double eps;
  bool f32_result = false;
  Tensor a{}, b{}, a_norm{}, b_norm{}, y{};  // in f32 or wider; norms and y keep a size of 1
  DType from{};
  Needs<2> needs{};

  Tensor forward(const Tensor& a_in, const Tensor& b_in) {
    check::floating("cosine_similarity", a_in);
    check::floating("cosine_similarity", b_in);
    check::same_dtype("cosine_similarity", a_in, b_in);
    from = a_in.dtype();
    const DType wide = from == f64 ? f64 : f32;
    a = cast(views::contiguous(a_in), wide), b = cast(views::contiguous(b_in), wide);
    a_norm = norm(a, {dim}, true), b_norm = norm(b, {dim}, true);
    const double largest = facts(wide).max;
    y = sum((a / clamp(a_norm, eps, largest)) * (b / clamp(b_norm, eps, largest)), {dim}, true);
    Shape shape = y.shape();
    shape.erase(normalize_dim("cosine_similarity", dim, y.rank()));
    return detail::as_shape(cast(y, f32_result ? f32 : from), shape);
  }
  std::array<Tensor, 2> backward(const Tensor& dy_in) const {
    const Tensor dy = cast(detail::keeping(dy_in, y.shape()), y.dtype());
    return {needs[0] ? gradient(dy, a, a_norm, b, b_norm) : Tensor{},
            needs[1] ? gradient(dy, b, b_norm, a, a_norm) : Tensor{}};
  }
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;
  /// the gradient of x, given z: (z / |z| - y x / |x|) / |x|
  Tensor gradient(const Tensor& dy, const Tensor& x, const Tensor& x_norm, const Tensor& z,
                  const Tensor& z_norm) const {
    const double largest = facts(y.dtype()).max;
    const Tensor x_size = clamp(x_norm, eps, largest), z_size = clamp(z_norm, eps, largest);
    const Tensor moves = cast(greater_equal(x_norm, scalar(eps, y.dtype(), y.device())), y.dtype());
    return cast(dy * (z / z_size - y * moves * (x / x_size)) / x_size, from);
  }
};

/// As torch.dot: two vectors of one size; dtypes are promoted.
inline Tensor dot(const Tensor& a, const Tensor& b) { return detail::apply_promoted(Dot{}, a, b); }

/// As torch.nn.functional.cosine_similarity: inputs broadcast, dtypes are promoted, `dim` counts in
/// the common shape and disappears.
inline Tensor cosine_similarity(const Tensor& a, const Tensor& b, int dim = 1, double eps = 1e-8) {
  check::defined("cosine_similarity", "an input", a);
  check::defined("cosine_similarity", "an input", b);
  Shape shape = broadcast_shapes("cosine_similarity", a.shape(), b.shape());
  if (shape.rank() == 0) shape.push_back(1);  // two numbers are vectors of one element
  normalize_dim("cosine_similarity", dim, shape.rank());
  if (!(eps > 0)) fail<UsageError>("cosine_similarity", "eps is ", eps, ". It must be positive.");
  return detail::apply_promoted(CosineSimilarity{.dim = dim, .eps = eps}, expand(a, shape),
                                expand(b, shape));
}

// Functions of vectors that are composed of norms and products.

/// Returns the matrix of all products of two vectors' elements. As torch.outer.
inline Tensor outer(const Tensor& a, const Tensor& b) {
  check::rank("outer", "a", a, 1);
  check::rank("outer", "b", b, 1);
  return unsqueeze(a, 1) * b;
}
/// Returns x over its norm of order p along a dimension, or over eps if that is larger. As
/// torch.nn.functional.normalize.
inline Tensor normalize(const Tensor& x, double p = 2, int dim = 1, double eps = 1e-12) {
  check::floating("normalize", x);
  const Dims dims{normalize_dim("normalize", dim, x.rank())};
  return x / clamp(vector_norm(x, p, dims, true), eps);
}
/// Returns the norm of order p of a - b + eps over the last dimension. As
/// torch.nn.functional.pairwise_distance.
inline Tensor pairwise_distance(const Tensor& a, const Tensor& b, double p = 2, double eps = 1e-6,
                                bool keep = false) {
  check::floating("pairwise_distance", a);
  check::floating("pairwise_distance", b);
  if (a.rank() == 0 && b.rank() == 0)
    fail<ShapeError>("pairwise_distance", "both inputs are scalars. Reshape them to [1].");
  return vector_norm(a - b + eps, p, {-1}, keep);
}

// Sums of products named by letters.

/// Returns einsum("bij,bjk->bik", {a, b}): dimensions of any number of operands are named by
/// letters. Letters that the result lacks are summed over. A letter twice in one operand takes its
/// diagonal. "..." means the dimensions without a letter, which broadcast. Without "->" the result
/// has "..." and the letters that occur once, in alphabetical order. Operands are multiplied from
/// left to right. As torch.einsum.
Tensor einsum(std::string_view equation, const std::vector<Tensor>& operands);
template <std::same_as<Tensor>... More>
Tensor einsum(std::string_view equation, const Tensor& first, const More&... more) {
  return einsum(equation, std::vector<Tensor>{first, more...});
}

}  // namespace halftone
