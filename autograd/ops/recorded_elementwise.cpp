// Elementwise operations and changes of dtype under create_graph. The gradient of a formula is an
// operation with the kernel that backward() calls; its own gradients multiply by the formula's
// higher derivatives, which backends compute with dual numbers.
#include <halftone/autograd/history.h>
#include <halftone/autograd/ops/cast.h>
#include <halftone/autograd/ops/elementwise.h>

namespace halftone {

namespace {

constexpr OpInfo gradient_info{"elementwise_gradient", CastClass::as_is};

template <class... F> std::string_view name_in(TypeList<F...>, int index) {
  const std::string_view names[] = {F::info.name...};
  return names[index];
}

/// Returns the derivatives once more, by an input.
Derivatives and_by(Derivatives d, int input, std::string_view name) {
  if (d.count == Derivatives::most)
    fail<UnsupportedError>(name, "has no ", d.count + 1,
                           "th gradient: formulas have three. Use a difference quotient of the "
                           "third.");
  d.by[d.count++] = input;
  return d;
}

/// y = a second or third derivative of a formula of one input.
struct UnaryDerivative : UserOp {
  static constexpr OpInfo info = gradient_info;
  FormulaCall formula;
  Derivatives derivatives;
  Tensor saved{};

  Tensor forward(const Tensor& s) {
    saved = s;
    Tensor y = empty_like(s);
    backend_for(s).unary_derivative(formula, derivatives, s, y);
    return y;
  }
  Tensor gradient(const Tensor& dy, const Tensor& s) const {
    const Derivatives next = and_by(derivatives, 0, name_in(UnaryFormulas{}, formula.index));
    return dy * apply(UnaryDerivative{{}, formula, next}, s);
  }
  std::array<Tensor, 1> backward(const Tensor& dy) const { return {gradient(dy, saved)}; }
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const {
    return {gradient(dy, history.input(0, saved))};
  }
};

/// dx = dy times the derivative at s; in the dtype `to`.
struct UnaryGradient : UserOp {
  static constexpr OpInfo info = gradient_info;
  FormulaCall formula;
  DType to;
  Tensor saved{}, dy{};  // saved: undefined if the derivative is constant
  Needs<2> needs{};

  Tensor forward(const Tensor& s, const Tensor& g) {
    saved = s, dy = g;
    Tensor dx = empty_like(s.defined() ? s : g, to);
    backend_for(g).unary_backward(formula, s, g, dx);
    return dx;
  }
  std::vector<Tensor> gradients(const Tensor& ddx, const Tensor& s, const Tensor& g, bool of_saved,
                                bool of_dy) const {
    std::vector<Tensor> result(2);
    if (of_saved && s.defined())
      result[0] = cast(cast(ddx, g.dtype()) * g *
                           cast(apply(UnaryDerivative{{}, formula, {2, {0, 0}}}, s), g.dtype()),
                       s.dtype());
    if (of_dy) result[1] = apply(UnaryGradient{{}, formula, g.dtype()}, s, ddx);
    return result;
  }
  std::vector<Tensor> backward(const Tensor& ddx) const {
    return gradients(ddx, saved, dy, needs[0], needs[1]);
  }
  std::vector<Tensor> recorded_backward(const Tensor& ddx, const History& history) const {
    return gradients(ddx, history.input(0, saved), history.input(1, dy), history.wants(0),
                     history.wants(1));
  }
};

/// y = a second or third derivative of a formula of two inputs, of one shape.
struct BinaryDerivative : UserOp {
  static constexpr OpInfo info = gradient_info;
  FormulaCall formula;
  Derivatives derivatives;
  Tensor a{}, b{};
  Needs<2> needs{};

  Tensor forward(const Tensor& a_in, const Tensor& b_in) {
    a = a_in, b = b_in;
    Tensor y = empty(a.shape(), a.dtype(), a.device());
    backend_for(a).binary_derivative(formula, derivatives, a, b, y);
    return y;
  }
  Tensor gradient(int input, const Tensor& dy, const Tensor& x, const Tensor& y) const {
    const Derivatives next = and_by(derivatives, input, name_in(BinaryFormulas{}, formula.index));
    return dy * apply(BinaryDerivative{{}, formula, next}, x, y);
  }
  std::vector<Tensor> backward(const Tensor& dy) const {
    return {needs[0] ? gradient(0, dy, a, b) : Tensor{},
            needs[1] ? gradient(1, dy, a, b) : Tensor{}};
  }
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const {
    const Tensor x = history.input(0, a), y = history.input(1, b);
    return {history.wants(0) ? gradient(0, dy, x, y) : Tensor{},
            history.wants(1) ? gradient(1, dy, x, y) : Tensor{}};
  }
};

/// dx = dy times the derivative by one input (0: a, 1: b); all of one shape.
struct BinaryGradient : UserOp {
  static constexpr OpInfo info = gradient_info;
  FormulaCall formula;
  int by;
  Tensor a{}, b{}, dy{};
  Needs<3> needs{};

  Tensor forward(const Tensor& a_in, const Tensor& b_in, const Tensor& g) {
    a = a_in, b = b_in, dy = g;
    Tensor dx = empty_like(g);
    backend_for(g).binary_backward(formula, by, a, b, g, dx);
    return dx;
  }
  std::vector<Tensor> gradients(const Tensor& ddx, const Tensor& x, const Tensor& y,
                                const Tensor& g, const std::array<bool, 3>& wanted) const {
    std::vector<Tensor> result(3);
    for (int i : {0, 1})
      if (wanted[std::size_t(i)])
        result[std::size_t(i)] = ddx * g * apply(BinaryDerivative{{}, formula, {2, {by, i}}}, x, y);
    if (wanted[2]) result[2] = apply(BinaryGradient{{}, formula, by}, x, y, ddx);
    return result;
  }
  std::vector<Tensor> backward(const Tensor& ddx) const {
    return gradients(ddx, a, b, dy, needs.input);
  }
  std::vector<Tensor> recorded_backward(const Tensor& ddx, const History& history) const {
    return gradients(ddx, history.input(0, a), history.input(1, b), history.input(2, dy),
                     {history.wants(0), history.wants(1), history.wants(2)});
  }
};

/// Returns the derivative of a formula whose derivatives are constant.
double constant_derivative(const FormulaCall& call, int input) {
  double slope = 0;
  visit_index(BinaryFormulas{}, call.index, [&]<class F>() {
    const F f = formula_of<F>(call);
    slope = input == 0 ? f.derivative_a(1.0, 1.0) : f.derivative_b(1.0, 1.0);
  });
  return slope;
}

}  // namespace

std::vector<Tensor> detail::recorded_unary(FormulaCall f, Saves saves, const Tensor& saved,
                                           DType from, const Tensor& dy, const History& history) {
  const Tensor s = saves == Saves::input    ? history.input(0, saved)
                   : saves == Saves::output ? history.output(saved)
                                            : Tensor{};
  return {apply(UnaryGradient{{}, f, from}, s, dy)};
}

std::vector<Tensor> detail::recorded_binary(FormulaCall f, const Tensor& a, const Tensor& b,
                                            const Tensor& dy, const History& history) {
  std::vector<Tensor> gradients(2);
  const auto full = [&](std::size_t input, const Tensor& saved) {
    return expand(history.input(input, saved), dy.shape());
  };
  for (std::size_t i : {0u, 1u}) {
    if (!history.wants(i)) continue;
    Tensor dx;
    if (!a.defined()) {  // a constant derivative
      const double slope = constant_derivative(f, int(i));
      dx = slope == 1 ? dy : affine(dy, slope, 0);
    } else {
      dx = apply(BinaryGradient{{}, f, int(i)}, full(0, a), full(1, b), dy);
    }
    gradients[i] = cast(sum_to(dx, history.shape(i)), history.dtype(i));
  }
  return gradients;
}

std::vector<Tensor> Where::recorded_backward(const Tensor& dy, const History& history) const {
  const Tensor zero = zeros({}, dy.dtype(), dy.device());
  Gradients gradients(3);
  if (history.wants(1)) gradients[1] = detail::sum_to(where(condition, dy, zero), a_shape);
  if (history.wants(2)) gradients[2] = detail::sum_to(where(condition, zero, dy), b_shape);
  return gradients;
}

std::vector<Tensor> Cast::recorded_backward(const Tensor& dy, const History&) const {
  return {cast(dy, from)};
}

std::vector<Tensor> Quantize::recorded_backward(const Tensor& dy, const History&) const {
  return {dy};
}

}  // namespace halftone
