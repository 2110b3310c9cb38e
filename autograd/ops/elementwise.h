// Elementwise operations. Each is a formula (core/formulas.h) in one of three generic nodes; to add
// one, write the formula, list it there, and give it a function here.
#pragma once

#include <cmath>
#include <limits>
#include <optional>

#include <halftone/autograd/apply.h>
#include <halftone/autograd/ops/cast.h>
#include <halftone/autograd/ops/shape.h>
#include <halftone/core/tensor.h>

namespace halftone {

namespace detail {
/// Compute recorded_backward() of Unary and Binary; `f` is the operation's formula. Defined in
/// recorded_elementwise.cpp.
std::vector<Tensor> recorded_unary(FormulaCall f, Saves saves, const Tensor& saved, DType from,
                                   const Tensor& dy, const History& history);
std::vector<Tensor> recorded_binary(FormulaCall f, const Tensor& a, const Tensor& b,
                                    const Tensor& dy, const History& history);

template <class F> void check_formula_input(const Tensor& x) {
  using OfBool = TypeList<formula::Add, formula::Mul, formula::Maximum, formula::Minimum>;
  if constexpr (is_in_list<F, OfBool>) check::numbers_or_bool(F::info.name, x);
  else if constexpr (takes_integers<F>) check::numbers(F::info.name, x);
  else check::floating(F::info.name, x);
}
}  // namespace detail

/// y = f(x). Saves only what the derivative reads; y has x's memory order.
template <class F> struct Unary {
  static constexpr OpInfo info = F::info;
  F formula{};
  Tensor saved{};  // x or y, as F::saves says
  bool f32_result = false;
  DType from{};

  Tensor forward(const Tensor& x) {
    detail::check_formula_input<F>(x);
    from = x.dtype();
    Tensor y = empty_like(x, f32_result ? f32 : from);
    backend_for(x).unary(call_of<UnaryFormulas>(formula), x, y);
    if constexpr (F::saves == Saves::input) saved = x;
    if constexpr (F::saves == Saves::output) saved = y;
    return y;
  }
  std::array<Tensor, 1> backward(const Tensor& dy) const {
    Tensor dx = empty_like(saved.defined() ? saved : dy, from);
    backend_for(dy).unary_backward(call_of<UnaryFormulas>(formula), saved, dy, dx);
    return {dx};
  }
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const {
    return detail::recorded_unary(call_of<UnaryFormulas>(formula), F::saves, saved, from, dy,
                                  history);
  }
};

namespace detail {
/// Returns whether kernels accept a and b although their dtypes differ. They do in sums and
/// differences of f32 and short floats, whose gradients need neither input. A residual is then
/// added without an f32 copy of the shorter one.
template <class F> bool mixes(const Tensor& a, const Tensor& b) {
  const auto short_or_f32 = [](DType dtype) {
    return dtype == f32 || dtype == f16 || dtype == bf16;
  };
  return is_in_list<F, TypeList<formula::Add, formula::Sub>> && a.dtype() != b.dtype() &&
         short_or_f32(a.dtype()) && short_or_f32(b.dtype());
}
}  // namespace detail

/// y = f(a, b) with broadcasting; both of one dtype, except for detail::mixes().
template <class F> struct Binary {
  static constexpr OpInfo info = F::info;
  F formula{};
  Tensor a{}, b{};  // saved, unless the derivative is constant
  Shape a_shape{}, b_shape{};
  Needs<2> needs{};

  Tensor forward(const Tensor& a_in, const Tensor& b_in) {
    detail::check_formula_input<F>(a_in);
    detail::check_formula_input<F>(b_in);
    if (!detail::mixes<F>(a_in, b_in)) check::same_dtype(info.name, a_in, b_in);
    a_shape = a_in.shape(), b_shape = b_in.shape();
    const Shape shape = broadcast_shapes(info.name, a_shape, b_shape);
    const DType dtype = promote(a_in.dtype(), b_in.dtype());
    Tensor y = shape == a_shape   ? empty_like(a_in, dtype)
               : shape == b_shape ? empty_like(b_in, dtype)
                                  : empty(shape, dtype, a_in.device());
    backend_for(y).binary(call_of<BinaryFormulas>(formula), views::expand(a_in, shape),
                          views::expand(b_in, shape), y);
    if constexpr (!F::constant_derivative) a = a_in, b = b_in;
    return y;
  }
  std::array<Tensor, 2> backward(const Tensor& dy) const {
    return {gradient(0, dy, a_shape), gradient(1, dy, b_shape)};
  }
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const {
    return detail::recorded_binary(call_of<BinaryFormulas>(formula), a, b, dy, history);
  }

  Tensor gradient(int input, const Tensor& dy, const Shape& shape) const {
    if (!needs[input]) return {};
    if constexpr (F::constant_derivative) {
      const bool is_one =
          input == 0 ? F{}.derivative_a(1.0, 1.0) == 1.0 : F{}.derivative_b(1.0, 1.0) == 1.0;
      if (is_one) return in_dtype_of(input, reduce_to(dy, shape));
    }
    Tensor dx = empty_like(dy);
    const Tensor a_full = a.defined() ? views::expand(a, dy.shape()) : dy;
    const Tensor b_full = b.defined() ? views::expand(b, dy.shape()) : dy;
    backend_for(dy).binary_backward(call_of<BinaryFormulas>(formula), input, a_full, b_full, dy,
                                    dx);
    return in_dtype_of(input, reduce_to(dx, shape));
  }
  /// Returns dx, which has the input's shape already, in the dtype of the input's gradient: rounded
  /// once, as the gradient of a cast is.
  Tensor in_dtype_of(int input, const Tensor& dx) const {
    const DType dtype = needs.dtype(input);
    return dtype == dx.dtype() ? dx : converted(dx, dtype);
  }
};

/// y = f(a, b) as bool, with broadcasting; any dtype, no gradient.
template <class F> struct Compare {
  static constexpr OpInfo info = F::info;
  F formula{};

  Tensor forward(const Tensor& a, const Tensor& b) {
    const Shape shape = broadcast_shapes(info.name, a.shape(), b.shape());
    Tensor y = empty(shape, boolean, a.device());
    backend_for(y).compare(call_of<CompareFormulas>(formula), views::expand(a, shape),
                           views::expand(b, shape), y);
    return y;
  }
};

/// y = condition ? a : b, with broadcasting. As torch.where.
struct Where {
  static constexpr OpInfo info{"where", CastClass::widest_input, cast_reason::two_inputs};
  Tensor condition{};
  Shape a_shape{}, b_shape{};
  Needs<3> needs{};

  Tensor forward(const Tensor& chosen, const Tensor& a, const Tensor& b) {
    if (chosen.dtype() != boolean)
      fail<DTypeError>("where", "the condition must be bool, got ", described(chosen),
                       ". Compare first.");
    check::same_dtype("where", a, b);
    const Shape shape =
        broadcast_shapes("where", broadcast_shapes("where", a.shape(), b.shape()), chosen.shape());
    condition = chosen, a_shape = a.shape(), b_shape = b.shape();
    Tensor y = empty(shape, a.dtype(), a.device());
    backend_for(y).select(views::expand(chosen, shape), views::expand(a, shape),
                          views::expand(b, shape), y);
    return y;
  }
  std::array<Tensor, 3> backward(const Tensor& dy) const {
    const Tensor zero = views::expand(zeros({}, dy.dtype(), dy.device()), dy.shape());
    const Tensor chosen = views::expand(condition, dy.shape());
    Tensor da, db;
    if (needs[1]) {
      da = empty_like(dy);
      backend_for(dy).select(chosen, dy, zero, da);
      da = reduce_to(da, a_shape);
    }
    if (needs[2]) {
      db = empty_like(dy);
      backend_for(dy).select(chosen, zero, dy, db);
      db = reduce_to(db, b_shape);
    }
    return {Tensor{}, da, db};
  }
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;
};

// --- one input

template <class F> Tensor unary(F formula, const Tensor& x) {
  return apply(Unary<F>{.formula = formula}, x);
}
inline Tensor relu(const Tensor& x) { return unary(formula::Relu{}, x); }
inline Tensor leaky_relu(const Tensor& x, double slope = 0.01) {
  return unary(formula::LeakyRelu{slope}, x);
}
/// GELU with the tanh form of Phi: torch's gelu(approximate="tanh").
inline Tensor gelu(const Tensor& x) { return unary(formula::Gelu{}, x); }
/// GELU with the exact Phi: torch's default.
inline Tensor gelu_erf(const Tensor& x) { return unary(formula::GeluErf{}, x); }
inline Tensor erf(const Tensor& x) { return unary(formula::Erf{}, x); }
inline Tensor silu(const Tensor& x) { return unary(formula::Silu{}, x); }
inline Tensor tanh(const Tensor& x) { return unary(formula::Tanh{}, x); }
inline Tensor sigmoid(const Tensor& x) { return unary(formula::Sigmoid{}, x); }
inline Tensor logsigmoid(const Tensor& x) { return unary(formula::LogSigmoid{}, x); }
inline Tensor softplus(const Tensor& x, double beta = 1, double threshold = 20) {
  if (!(beta > 0)) fail<UsageError>("softplus", "beta is ", beta, ". It must be positive.");
  return unary(formula::Softplus{beta, threshold}, x);
}
inline Tensor exp(const Tensor& x) { return unary(formula::Exp{}, x); }
inline Tensor expm1(const Tensor& x) { return unary(formula::Expm1{}, x); }
inline Tensor log(const Tensor& x) { return unary(formula::Log{}, x); }
inline Tensor log2(const Tensor& x) { return unary(formula::Log2{}, x); }
inline Tensor log10(const Tensor& x) { return unary(formula::Log10{}, x); }
inline Tensor log1p(const Tensor& x) { return unary(formula::Log1p{}, x); }
inline Tensor sqrt(const Tensor& x) { return unary(formula::Sqrt{}, x); }
inline Tensor rsqrt(const Tensor& x) { return unary(formula::Rsqrt{}, x); }
inline Tensor reciprocal(const Tensor& x) { return unary(formula::Reciprocal{}, x); }
inline Tensor square(const Tensor& x) { return unary(formula::Square{}, x); }
inline Tensor abs(const Tensor& x) { return unary(formula::Abs{}, x); }
inline Tensor neg(const Tensor& x) { return unary(formula::Neg{}, x); }
inline Tensor sin(const Tensor& x) { return unary(formula::Sin{}, x); }
inline Tensor cos(const Tensor& x) { return unary(formula::Cos{}, x); }
/// Returns -1, 0 or 1. Like floor, ceil and round it has a gradient of 0.
inline Tensor sign(const Tensor& x) { return unary(formula::Sign{}, x); }
inline Tensor floor(const Tensor& x) { return unary(formula::Floor{}, x); }
inline Tensor ceil(const Tensor& x) { return unary(formula::Ceil{}, x); }
/// Rounds to the nearest whole number, halves to the even one.
inline Tensor round(const Tensor& x) { return unary(formula::Round{}, x); }
inline Tensor elu(const Tensor& x, double alpha = 1) { return unary(formula::Elu{alpha}, x); }
inline Tensor selu(const Tensor& x) {
  return unary(formula::Elu{1.6732632423543772848, 1.0507009873554804934}, x);
}
inline Tensor mish(const Tensor& x) { return unary(formula::Mish{}, x); }
inline Tensor hardswish(const Tensor& x) { return unary(formula::Hardswish{}, x); }
inline Tensor tan(const Tensor& x) { return unary(formula::Tan{}, x); }
inline Tensor asin(const Tensor& x) { return unary(formula::Asin{}, x); }
inline Tensor acos(const Tensor& x) { return unary(formula::Acos{}, x); }
inline Tensor atan(const Tensor& x) { return unary(formula::Atan{}, x); }
inline Tensor sinh(const Tensor& x) { return unary(formula::Sinh{}, x); }
inline Tensor cosh(const Tensor& x) { return unary(formula::Cosh{}, x); }
inline Tensor exp2(const Tensor& x) { return unary(formula::Exp2{}, x); }
inline Tensor erfinv(const Tensor& x) { return unary(formula::Erfinv{}, x); }
/// Rounds towards 0; the gradient is 0.
inline Tensor trunc(const Tensor& x) { return unary(formula::Trunc{}, x); }
/// Returns x - trunc(x), with x's sign.
inline Tensor frac(const Tensor& x) { return unary(formula::Frac{}, x); }
/// Returns log(x / (1 - x)); with eps, x is first limited to [eps, 1 - eps]. As torch.logit.
inline Tensor logit(const Tensor& x, std::optional<double> eps = {}) {
  return unary(formula::Logit{eps.value_or(-1)}, x);
}
/// Returns scale * x + shift in one pass.
inline Tensor affine(const Tensor& x, double scale, double shift) {
  return unary(formula::Affine{scale, shift}, x);
}

// --- two inputs: broadcasting, and promotion by recorded casts if dtypes differ

namespace detail {
template <class Op> Tensor apply_promoted(Op op, const Tensor& a, const Tensor& b) {
  check::defined(Op::info.name, "an input", a);
  check::defined(Op::info.name, "an input", b);
  if (a.dtype() == b.dtype()) return apply(std::move(op), a, b);
  const DType common = promote(a.dtype(), b.dtype());
  return apply(std::move(op), cast(a, common), cast(b, common));
}
}  // namespace detail

/// Returns formula(a, b). Casts promote different dtypes, unless mixes() allows these and no policy
/// rounds inputs to grids.
template <class F> Tensor binary(F formula, const Tensor& a, const Tensor& b) {
  const InputCaster* const caster = active_caster();
  if (a.defined() && b.defined() && detail::mixes<F>(a, b) && !(caster && caster->treats()))
    return apply(Binary<F>{.formula = formula}, a, b);
  return detail::apply_promoted(Binary<F>{.formula = formula}, a, b);
}
inline Tensor add(const Tensor& a, const Tensor& b) { return binary(formula::Add{}, a, b); }
inline Tensor sub(const Tensor& a, const Tensor& b) { return binary(formula::Sub{}, a, b); }
inline Tensor mul(const Tensor& a, const Tensor& b) { return binary(formula::Mul{}, a, b); }
namespace detail {
/// Returns binary(formula, a, b); two integer tensors are first cast to f32.
template <class F> Tensor of_floats(F formula, const Tensor& a, const Tensor& b) {
  check::defined(F::info.name, "an input", a);
  check::defined(F::info.name, "an input", b);
  const bool whole = !is_floating(a.dtype()) && !is_floating(b.dtype());
  return whole ? binary(formula, cast(a, f32), cast(b, f32)) : binary(formula, a, b);
}
}  // namespace detail
/// Divides. Integers are divided as f32, as torch.div; floor_divide() keeps them integers.
inline Tensor div(const Tensor& a, const Tensor& b) {
  return detail::of_floats(formula::Div{}, a, b);
}
inline Tensor maximum(const Tensor& a, const Tensor& b) { return binary(formula::Maximum{}, a, b); }
inline Tensor minimum(const Tensor& a, const Tensor& b) { return binary(formula::Minimum{}, a, b); }
inline Tensor pow(const Tensor& a, const Tensor& b) { return binary(formula::Pow{}, a, b); }
/// Returns log(exp(a) + exp(b)) without overflow. As torch.logaddexp.
inline Tensor logaddexp(const Tensor& a, const Tensor& b) {
  return binary(formula::LogAddExp{}, a, b);
}
/// atan2() returns the angle of the point (b, a). xlogy() returns a log(b), and 0 if a is 0. As
/// torch.atan2 and torch.xlogy: integers become f32.
inline Tensor atan2(const Tensor& a, const Tensor& b) {
  return detail::of_floats(formula::Atan2{}, a, b);
}
inline Tensor xlogy(const Tensor& a, const Tensor& b) {
  return detail::of_floats(formula::XLogY{}, a, b);
}
/// Returns silu(gate) * up in one pass.
inline Tensor swiglu(const Tensor& gate, const Tensor& up) {
  return binary(formula::Swiglu{}, gate, up);
}
/// leaky_relu with learned slopes: one, or one per channel (dimension 1). As
/// torch.nn.functional.prelu.
inline Tensor prelu(const Tensor& x, const Tensor& weight) {
  check::defined("prelu", "an input", x);
  check::defined("prelu", "the weight", weight);
  const int64_t channels = x.rank() < 2 ? 1 : x.shape()[1];
  if (weight.rank() != 1 || (weight.numel() != 1 && weight.numel() != channels))
    fail<ShapeError>("prelu", "the weight is ", described(weight), " for ", channels,
                     " channels. It must be [1] or [", channels, "].");
  Shape shape = Dims::filled(x.rank(), 1);
  if (x.rank() >= 2) shape[1] = weight.numel();
  return binary(formula::Prelu{}, x, reshape(weight, shape));
}

template <class F> Tensor compare(F formula, const Tensor& a, const Tensor& b) {
  return detail::apply_promoted(Compare<F>{formula}, a, b);
}
inline Tensor equal(const Tensor& a, const Tensor& b) { return compare(formula::Equal{}, a, b); }
inline Tensor not_equal(const Tensor& a, const Tensor& b) {
  return compare(formula::NotEqual{}, a, b);
}
inline Tensor less(const Tensor& a, const Tensor& b) { return compare(formula::Less{}, a, b); }
inline Tensor less_equal(const Tensor& a, const Tensor& b) {
  return compare(formula::LessEqual{}, a, b);
}
inline Tensor greater(const Tensor& a, const Tensor& b) {
  return compare(formula::Greater{}, a, b);
}
inline Tensor greater_equal(const Tensor& a, const Tensor& b) {
  return compare(formula::GreaterEqual{}, a, b);
}

inline Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  check::defined("where", "the condition", condition);
  check::defined("where", "an input", a);
  check::defined("where", "an input", b);
  const DType common = promote(a.dtype(), b.dtype());
  return apply(Where{}, condition, cast(a, common), cast(b, common));
}

// The operators of C++ on tensors, and numbers next to tensors in functions of two inputs.

namespace detail {
/// Returns the dtype that x and a number promote to.
inline DType dtype_for(const Tensor& x, Number number) {
  if (is_floating(x.dtype())) return x.dtype();
  if (!number.whole) return f32;
  const bool fits = x.dtype() != boolean && std::abs(number.value) <= facts(x.dtype()).max &&
                    (number.value >= 0 || x.dtype() != u8);
  return fits ? x.dtype() : i64;
}
/// Returns the number as a scalar tensor on x's device, in the dtype to which both promote.
inline Tensor scalar_like(std::string_view op, const Tensor& x, Number number) {
  check::defined(op, "an input", x);
  return scalar(number, dtype_for(x, number), x.device());
}
/// Returns f of x and a number. The number is not rounded to x's dtype first: for a short x, f is
/// computed in f32, and the result is rounded once.
template <class F> Tensor with_number(std::string_view op, const Tensor& x, Number number, F f) {
  check::defined(op, "an input", x);
  const bool shorter = is_floating(x.dtype()) && size_of(x.dtype()) < size_of(f32);
  const Tensor wide = shorter ? cast(x, f32) : x;
  const Tensor y = f(wide, scalar_like(op, wide, number));
  return shorter ? cast(y, x.dtype()) : y;
}
/// Returns scale * x + shift in the dtype that x and both numbers promote to.
inline Tensor scaled_and_shifted(const Tensor& x, Number scale, Number shift) {
  check::defined("affine", "an input", x);
  if (is_floating(x.dtype())) return affine(x, scale.value, shift.value);
  const DType wide = scale.whole && shift.whole ? (x.dtype() == boolean ? i64 : x.dtype()) : f32;
  if (is_floating(wide) || (scale.in_double() && shift.in_double()))
    return affine(cast(x, wide), scale.value, shift.value);
  const auto exact = [&](Number number) { return scalar(number, wide, x.device()); };
  return add(mul(cast(x, wide), exact(scale)), exact(shift));
}
}  // namespace detail

inline Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return div(a, b); }
inline Tensor operator+(const Tensor& a, Number b) { return detail::scaled_and_shifted(a, 1, b); }
inline Tensor operator-(const Tensor& a, Number b) { return detail::scaled_and_shifted(a, 1, -b); }
inline Tensor operator*(const Tensor& a, Number b) { return detail::scaled_and_shifted(a, b, 0); }
inline Tensor operator/(const Tensor& a, Number b) {
  check::defined("affine", "an input", a);
  if (is_floating(a.dtype())) {
    const double inverse = 1 / b.value, largest = facts(a.dtype() == f64 ? f64 : f32).max;
    if (b.value == 0 || !(std::abs(inverse) > largest)) return affine(a, inverse, 0);
    return detail::with_number("div", a, b,
                               [](const Tensor& x, const Tensor& y) { return div(x, y); });
  }
  return div(cast(a, f32), scalar(b.value, f32, a.device()));
}
inline Tensor operator+(Number a, const Tensor& b) { return b + a; }
inline Tensor operator-(Number a, const Tensor& b) { return detail::scaled_and_shifted(b, -1, a); }
inline Tensor operator*(Number a, const Tensor& b) { return b * a; }
inline Tensor operator/(Number a, const Tensor& b) {
  check::defined("reciprocal", "an input", b);
  return reciprocal(is_floating(b.dtype()) ? b : cast(b, f32)) * a.value;
}
inline Tensor operator-(const Tensor& x) { return neg(x); }

inline Tensor operator==(const Tensor& a, const Tensor& b) { return equal(a, b); }
inline Tensor operator!=(const Tensor& a, const Tensor& b) { return not_equal(a, b); }
inline Tensor operator<(const Tensor& a, const Tensor& b) { return less(a, b); }
inline Tensor operator<=(const Tensor& a, const Tensor& b) { return less_equal(a, b); }
inline Tensor operator>(const Tensor& a, const Tensor& b) { return greater(a, b); }
inline Tensor operator>=(const Tensor& a, const Tensor& b) { return greater_equal(a, b); }
// The number is rounded to the tensor's dtype first, as in PyTorch.
inline Tensor operator==(const Tensor& a, Number b) {
  return equal(a, detail::scalar_like("equal", a, b));
}
inline Tensor operator!=(const Tensor& a, Number b) {
  return not_equal(a, detail::scalar_like("not_equal", a, b));
}
inline Tensor operator<(const Tensor& a, Number b) {
  return less(a, detail::scalar_like("less", a, b));
}
inline Tensor operator<=(const Tensor& a, Number b) {
  return less_equal(a, detail::scalar_like("less_equal", a, b));
}
inline Tensor operator>(const Tensor& a, Number b) {
  return greater(a, detail::scalar_like("greater", a, b));
}
inline Tensor operator>=(const Tensor& a, Number b) {
  return greater_equal(a, detail::scalar_like("greater_equal", a, b));
}
inline Tensor operator==(Number a, const Tensor& b) { return b == a; }
inline Tensor operator!=(Number a, const Tensor& b) { return b != a; }
inline Tensor operator<(Number a, const Tensor& b) { return b > a; }
inline Tensor operator<=(Number a, const Tensor& b) { return b >= a; }
inline Tensor operator>(Number a, const Tensor& b) { return b < a; }
inline Tensor operator>=(Number a, const Tensor& b) { return b <= a; }

inline Tensor maximum(const Tensor& a, Number b) {
  return maximum(a, detail::scalar_like("maximum", a, b));
}
inline Tensor maximum(Number a, const Tensor& b) { return maximum(b, a); }
inline Tensor minimum(const Tensor& a, Number b) {
  return minimum(a, detail::scalar_like("minimum", a, b));
}
inline Tensor minimum(Number a, const Tensor& b) { return minimum(b, a); }
inline Tensor xlogy(const Tensor& a, Number b) {
  return xlogy(a, detail::scalar_like("xlogy", a, b));
}
inline Tensor xlogy(Number a, const Tensor& b) {
  return xlogy(detail::scalar_like("xlogy", b, a), b);
}
/// Return x ^ exponent and base ^ x. As torch.pow: integers with a whole number are raised as
/// integers, with any other number as f32. A negative whole exponent of integers throws UsageError.
inline Tensor pow(const Tensor& x, Number exponent) {
  check::defined("pow", "an input", x);
  const bool whole = !is_floating(x.dtype()) && exponent.whole;
  if (whole && exponent.value < 0)
    fail<UsageError>("pow", "the exponent of integers is ", exponent.value,
                     ". It must be 0 or more. Cast to f32 for fractions.");
  if (whole && !exponent.in_double()) return pow(x, detail::scalar_like("pow", x, exponent));
  return unary(formula::PowScalar{exponent.value},
               cast(x, detail::dtype_for(x, exponent.whole ? Number(0) : exponent)));
}
inline Tensor pow(Number base, const Tensor& x) {
  return detail::with_number("pow", x, base, [&](const Tensor& exponent, const Tensor& b) {
    return pow(b, is_floating(x.dtype()) || base.whole ? exponent : cast(exponent, f32));
  });
}
/// Limits x to [low, high]; one of the two may be absent: clamp(x, 0), clamp(x, {}, 1). As
/// torch.clamp with numbers; integers with a fraction become f32. Throws UsageError if low > high.
inline Tensor clamp(const Tensor& x, std::optional<Number> low, std::optional<Number> high = {}) {
  check::defined("clamp", "an input", x);
  if (!low && !high) fail<UsageError>("clamp", "got neither bound. Pass low, high, or both.");
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const double from = low ? low->value : -infinity, to = high ? high->value : infinity;
  if (!(from <= to))
    fail<UsageError>("clamp", "low is ", from, ", high is ", to, ". Use low <= high.");
  const bool whole = (!low || low->whole) && (!high || high->whole);
  if (x.dtype() == i64 && whole && !(low.value_or(0).in_double() && high.value_or(0).in_double())) {
    const Tensor raised = low ? maximum(x, *low) : x;
    return high ? minimum(raised, *high) : raised;
  }
  return unary(formula::Clamp{from, to},
               cast(x, detail::dtype_for(x, whole ? Number(0) : Number(0.5))));
}
/// Limits x to [low, high], tensors that broadcast with it; one of them may be undefined. Where low
/// > high, the result is high. Where x equals a bound, both share the gradient.
inline Tensor clamp(const Tensor& x, const Tensor& low, const Tensor& high = {}) {
  if (!low.defined() && !high.defined())
    fail<UsageError>("clamp", "got neither bound. Pass low, high, or both.");
  const Tensor raised = low.defined() ? maximum(x, low) : x;
  return high.defined() ? minimum(raised, high) : raised;
}
inline Tensor where(const Tensor& condition, const Tensor& a, Number b) {
  return where(condition, a, detail::scalar_like("where", a, b));
}
inline Tensor where(const Tensor& condition, Number a, const Tensor& b) {
  return where(condition, detail::scalar_like("where", b, a), b);
}

}  // namespace halftone
