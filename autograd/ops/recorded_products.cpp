// Products under create_graph: the gradients of a product are products of the same kind.
#include <halftone/autograd/history.h>
#include <halftone/autograd/ops/decoder.h>
#include <halftone/autograd/ops/images.h>
#include <halftone/autograd/ops/index.h>
#include <halftone/autograd/ops/logical.h>
#include <halftone/autograd/ops/matmul.h>

namespace halftone {

namespace {

/// c = a b for matrices, or batches of them of one size, in the dtype `to`.
struct Product : UserOp {
  static constexpr OpInfo info{"matmul", CastClass::as_is};
  static constexpr std::array wide_gradients{true, true};
  DType to;
  std::optional<Accumulator> accumulator;
  Tensor a{}, b{};
  Needs<2> needs{};

  Tensor forward(const Tensor& a_in, const Tensor& b_in) {
    a = detail::matrix_layout(a_in), b = detail::matrix_layout(b_in);
    return Matmul::product(a, b, to, accumulator);
  }
  Tensor product(const Tensor& x, const Tensor& y, DType dtype) const {
    return apply(Product{{}, dtype, accumulator}, x, y);
  }
  std::array<Tensor, 2> backward(const Tensor& dc_in) const {
    const Tensor dc = cast(dc_in, a.dtype());
    return {needs[0] ? product(dc, transpose(b, -2, -1), needs.dtype(0)) : Tensor{},
            needs[1] ? product(transpose(a, -2, -1), dc, needs.dtype(1)) : Tensor{}};
  }
  Gradients recorded_backward(const Tensor& dc_in, const History& history) const {
    const Tensor dc = cast(dc_in, a.dtype());
    Gradients gradients(2);
    if (history.wants(0))
      gradients[0] = product(dc, transpose(history.input(1, b), -2, -1), history.dtype(0));
    if (history.wants(1))
      gradients[1] = product(transpose(history.input(0, a), -2, -1), dc, history.dtype(1));
    return gradients;
  }
};

/// Returns the shape of a matrix of a batch.
Shape with_matrix(Shape batch, const Tensor& x) {
  batch.push_back(x.size(-2)), batch.push_back(x.size(-1));
  return batch;
}

}  // namespace

Gradients Matmul::recorded_backward(const Tensor& dc_in, const History& history) const {
  const bool batched = a.rank() == 3;
  const auto operand = [&](std::size_t i, const Tensor& x) {
    return batched ? history.input(i, x, with_matrix(batch, x)) : history.input(i, x);
  };
  const Tensor dc = batched ? reshape(dc_in, {a.shape()[0], a.shape()[1], b.shape()[2]}) : dc_in;
  const auto gradient = [&](std::size_t i, const Tensor& x, const Tensor& y, const Tensor& of) {
    const Shape full = batched ? with_matrix(batch, of) : of.shape();
    const bool sums = numel_of(full) != numel_of(history.shape(i));
    const DType to = sums ? statistics_dtype(a) : history.dtype(i);
    const Tensor product = apply(Product{{}, to, accumulate}, x, y);
    return history.fitting(
        i, sums ? detail::sum_to(reshape(product, full), history.shape(i)) : product);
  };
  Gradients gradients(2);
  if (history.wants(0)) gradients[0] = gradient(0, dc, transpose(operand(1, b), -2, -1), a);
  if (history.wants(1)) gradients[1] = gradient(1, transpose(operand(0, a), -2, -1), dc, b);
  return gradients;
}

Gradients Linear::recorded_backward(const Tensor& dy_in, const History& history) const {
  const Tensor dy = reshape(dy_in, {x.shape()[0], weight.shape()[0]});
  Gradients gradients(3);
  if (history.wants(0))
    gradients[0] = reshape(
        apply(Product{{}, history.dtype(0), accumulate}, dy, history.input(1, weight)), shape);
  if (history.wants(1))
    gradients[1] =
        apply(Product{{}, history.dtype(1), accumulate}, transpose(dy, 0, 1), history.input(0, x));
  if (history.wants(2)) gradients[2] = sum(cast(dy, history.dtype(2)), {0});
  return gradients;
}

Gradients GroupedLinear::recorded_backward(const Tensor& dy, const History& history) const {
  return history.through(dy, {x, weight}, [this](const std::vector<Tensor>& in) {
    std::vector<Tensor> products;
    each_group([&](int64_t group, int64_t begin, int64_t end) {
      products.push_back(linear(slice(in[0], 0, begin, end), select(in[1], 0, group)));
    });
    return products.empty() ? linear(in[0], select(in[1], 0, 0)) : cat(products, 0);
  });
}

Gradients Dot::recorded_backward(const Tensor& dy, const History& history) const {
  return {history.wants(0) ? history.input(1, b) * dy : Tensor{},
          history.wants(1) ? history.input(0, a) * dy : Tensor{}};
}

Gradients CosineSimilarity::recorded_backward(const Tensor& dy, const History& history) const {
  return history.through(dy, {a, b}, [this](const std::vector<Tensor>& in) {
    const auto unit = [&](const Tensor& x) {
      return x / clamp(norm(x, {dim}, true), eps, facts(y.dtype()).max);
    };
    return sum(unit(in[0]) * unit(in[1]), {dim});
  });
}

// Convolutions: y = x * w is linear in both, and has two adjoints.

namespace {

Tensor convolved(const Tensor& x, const Tensor& w, const ConvGeometry& geometry) {
  return apply(Conv2d{.geometry = geometry}, x, w, Tensor{});
}

/// The adjoint by x, and by w; each is linear in both of its inputs.
Tensor by_data(const Tensor& dy, const Tensor& w, const ConvGeometry& geometry,
               const Shape& x_shape);
Tensor by_weight(const Tensor& x, const Tensor& dy, const ConvGeometry& geometry,
                 const Shape& w_shape, DType to);

struct ConvByData : UserOp {
  static constexpr OpInfo info{"conv2d", CastClass::as_is};
  ConvGeometry geometry;
  Shape x_shape;
  Tensor dy{}, weight{};
  Needs<2> needs{};

  Tensor forward(const Tensor& g, const Tensor& w) {
    dy = views::channels_last(g), weight = detail::weight_layout(w);
    Tensor dx = empty_channels_last(x_shape, dy.dtype(), dy.device());
    backend_for(dy).conv_backward_data(dy, weight, geometry, dx);
    return dx;
  }
  Gradients gradients(const Tensor& ddx, const Tensor& g, const Tensor& w, bool of_dy,
                      bool of_weight) const {
    return {of_dy ? convolved(ddx, w, geometry) : Tensor{},
            of_weight ? by_weight(ddx, g, geometry, w.shape(), w.dtype()) : Tensor{}};
  }
  Gradients backward(const Tensor& ddx) const {
    return gradients(ddx, dy, weight, needs[0], needs[1]);
  }
  Gradients recorded_backward(const Tensor& ddx, const History& history) const {
    return gradients(ddx, history.input(0, dy), history.input(1, weight), history.wants(0),
                     history.wants(1));
  }
};

struct ConvByWeight : UserOp {
  static constexpr OpInfo info{"conv2d", CastClass::as_is};
  ConvGeometry geometry;
  Shape w_shape;
  DType to;
  Tensor x{}, dy{};
  Needs<2> needs{};

  Tensor forward(const Tensor& in, const Tensor& g) {
    x = views::channels_last(in), dy = views::channels_last(g);
    Tensor dw = empty(w_shape, to, x.device()), no_bias;
    backend_for(x).conv_backward_weights(x, dy, geometry, dw, no_bias);
    return dw;
  }
  Gradients gradients(const Tensor& ddw, const Tensor& in, const Tensor& g, bool of_x,
                      bool of_dy) const {
    const Tensor w = cast(ddw, in.dtype());
    return {of_x ? by_data(g, w, geometry, in.shape()) : Tensor{},
            of_dy ? convolved(in, w, geometry) : Tensor{}};
  }
  Gradients backward(const Tensor& ddw) const { return gradients(ddw, x, dy, needs[0], needs[1]); }
  Gradients recorded_backward(const Tensor& ddw, const History& history) const {
    return gradients(ddw, history.input(0, x), history.input(1, dy), history.wants(0),
                     history.wants(1));
  }
};

Tensor by_data(const Tensor& dy, const Tensor& w, const ConvGeometry& geometry,
               const Shape& x_shape) {
  return apply(ConvByData{{}, geometry, x_shape}, dy, w);
}
Tensor by_weight(const Tensor& x, const Tensor& dy, const ConvGeometry& geometry,
                 const Shape& w_shape, DType to) {
  return apply(ConvByWeight{{}, geometry, w_shape, to}, x, dy);
}

}  // namespace

Gradients Conv2d::recorded_backward(const Tensor& dy, const History& history) const {
  if (accumulate)
    fail<UnsupportedError>("conv2d",
                           "has no second gradient in an emulated accumulator. Except this place "
                           "from the rule with \"accumulate\".");
  Gradients gradients(3);
  if (history.wants(0)) gradients[0] = by_data(dy, history.input(1, weight), geometry, x.shape());
  if (history.wants(1))
    gradients[1] = by_weight(history.input(0, x), dy, geometry, weight.shape(), history.dtype(1));
  if (history.wants(2)) gradients[2] = sum(cast(dy, history.dtype(2)), {0, 2, 3});
  return gradients;
}

Gradients ConvTranspose2d::recorded_backward(const Tensor& dy, const History& history) const {
  Gradients gradients(3);
  if (history.wants(0)) gradients[0] = convolved(dy, history.input(1, weight), geometry);
  if (history.wants(1))
    gradients[1] = by_weight(dy, history.input(0, x), geometry, weight.shape(), history.dtype(1));
  if (history.wants(2)) gradients[2] = sum(cast(dy, history.dtype(2)), {0, 2, 3});
  return gradients;
}

// Pooling and resizing are linear in the image, given the places of the largest elements.

namespace {
/// Returns 0, 1, .. below count, times a step, along dimension `dim` of images.
Tensor counted(int64_t count, int64_t step, int dim, Device device) {
  Shape shape{1, 1, 1, 1};
  shape[dim] = count;
  return reshape((cumsum(ones({count}, i64, device), 0) - 1) * step, shape);
}
}  // namespace

Gradients MaxPool2d::recorded_backward(const Tensor& dy, const History&) const {
  const PoolGeometry& g = geometry;
  const int64_t n = shape[0], c = shape[1];
  Tensor places;
  {
    const NoGrad no_grad;
    const Tensor in_window = cast(argmax, i64);
    const int64_t width = g.kernel[1];
    const auto along = [&](int dim, const Tensor& offset) {
      const auto d = std::size_t(dim - 2);
      return counted(argmax.size(dim), g.stride[d], dim, argmax.device()) + offset * g.dilation[d] -
             g.padding[d];
    };
    const Tensor row = along(2, floor_divide(in_window, Number(width)));
    const Tensor column = along(3, remainder(in_window, Number(width)));
    places = reshape(row * shape[3] + column, {n, c, argmax.size(2) * argmax.size(3)});
  }
  const Tensor zero = zeros({n, c, shape[2] * shape[3]}, dy.dtype(), dy.device());
  return {reshape(scatter_add(zero, 2, places, reshape(dy, places.shape())), shape)};
}

Gradients AvgPool2d::recorded_backward(const Tensor& dy, const History&) const {
  const auto pooled = [op = *this, result = dy.shape()](const Tensor& x) {
    const Dims sides{0, 0, op.border.height, op.border.width};
    const Tensor image = Pad{.before = sides, .after = sides, .value = 0}.forward(x);
    Tensor y = empty_channels_last(result, x.dtype(), x.device());
    backend_for(x).avg_pool(views::channels_last(image), op.geometry, y);
    return y;
  };
  return {detail::linear_map(
      dy, [op = *this](const Tensor& g) { return op.backward(g)[0]; }, pooled)};
}

Gradients AdaptiveAvgPool2d::recorded_backward(const Tensor& dy, const History&) const {
  return {detail::adjoint_of(*this, dy)};
}

Gradients Interpolate::recorded_backward(const Tensor& dy, const History&) const {
  return {detail::adjoint_of(*this, dy)};
}

}  // namespace halftone
