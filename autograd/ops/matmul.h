// Matrix products. The kernel takes strides, so a transposed operand is a view, never a copy, and
// each gradient is a product of the same kind:  c = a b   =>   da = dc b^T,  db = a^T dc.
#pragma once

#include <halftone/autograd/ops/reduce.h>

namespace halftone {

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
/// c = a b + bias, in an emulated accumulator if there is one (not for f64).
inline void multiply(const Tensor& a, const Tensor& b, const Tensor& bias,
                     const std::optional<Accumulator>& accumulator, Tensor& c) {
  if (accumulator && a.dtype() != f64)
    backend_for(a).matmul_accumulating(a, b, bias, *accumulator, c);
  else backend_for(a).matmul(a, b, bias, c);
}
}  // namespace detail

/// c[.., m, n] = a[.., m, k] b[.., k, n] of rank 2 or more; leading dimensions broadcast. The
/// gradient of a matrix that serves several products is summed in f32 or wider and rounded once.
struct Matmul {
  static constexpr Contraction sums{.forward = {Sums::over_last, Sums::over_rows},
                                    .backward = {Sums::over_rows, Sums::over_last},
                                    .gradient = {Sums::over_last, Sums::over_rows}};
  static double flops(std::span<const Tensor> inputs);
  static constexpr OpInfo info{"matmul",
                               CastClass::low_precision,
                               cast_reason::products,
                               {.accumulator = true, .tf32 = true, .sums = sums, .flops = flops}};
  static constexpr std::array wide_gradients{true, true};
  Tensor a{}, b{};                      // rank 2, or rank 3 with one batch size
  Shape batch{}, a_shape{}, b_shape{};  // the batch of the result, and the inputs' shapes
  Needs<2> needs{};
  std::optional<Accumulator> accumulate{};  // for all three products; absent: the kernel's own

  Tensor forward(const Tensor& a_in, const Tensor& b_in);
  std::array<Tensor, 2> backward(const Tensor& dc_in) const;
  /// Returns the gradient of the input `which` from x y, over every product of the batch.
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
  static constexpr OpInfo info{"linear",
                               CastClass::low_precision,
                               cast_reason::products,
                               {.accumulator = true, .tf32 = true, .sums = sums, .flops = flops}};
  static constexpr std::array wide_gradients{true, true, true};
  Tensor x{}, weight{};
  Shape shape{};
  Needs<3> needs{};
  std::optional<Accumulator> accumulate{};  // as Matmul's

  Tensor forward(const Tensor& input, const Tensor& w, const Tensor& bias) {
    check_inputs(input, w, bias);
    shape = input.shape();
    x = views::contiguous(views::reshaped(input, {rows_of(input.shape()), w.shape()[1]}));
    weight = detail::matrix_layout(w);
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
    const Tensor dy = views::contiguous(views::reshaped(dy_in, {x.shape()[0], out}));
    Tensor dx, dweight, dbias;
    if (needs[0])
      dx = detail::as_shape(Matmul::product(dy, weight, needs.dtype(0), accumulate), shape);
    if (needs[1]) dweight = Matmul::product(detail::transposed(dy), x, needs.dtype(1), accumulate);
    if (needs[2]) dbias = reduce_to(dy, {1, out}, needs.dtype(2)).view_as({out}, {1}, 0);
    return {dx, dweight, dbias};
  }

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

}  // namespace halftone
