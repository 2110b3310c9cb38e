// Elementwise operations. ONNX's operators are used where they compute the same; other formulas are
// written out. Short floats are computed in f32 and rounded once, as halftone's kernels do.
#include <cmath>
#include <numbers>
#include <utility>

#include <halftone/autograd/ops.h>
#include <halftone/onnx/conversions.h>

namespace halftone::onnx {

namespace {
using Inputs = std::vector<Value>;

/// Writes one node of a type, with all inputs.
template <const char* type> void one_node(const Step& step) {
  Inputs inputs;
  for (std::size_t i = 0; i < step.input_count(); ++i) inputs.push_back(step.wide_input(i));
  step.result(step.node(type, inputs));
}

/// The same for functions that are exact in any dtype.
template <const char* type> void exact_node(const Step& step) {
  step.result(step.node(type, {step.runnable_input(0)}));
}

#define HALFTONE_ONNX_TYPE(name) constexpr char name##_type[] = #name
HALFTONE_ONNX_TYPE(Relu);
HALFTONE_ONNX_TYPE(Erf);
HALFTONE_ONNX_TYPE(Sigmoid);
HALFTONE_ONNX_TYPE(Tanh);
HALFTONE_ONNX_TYPE(Exp);
HALFTONE_ONNX_TYPE(Log);
HALFTONE_ONNX_TYPE(Sqrt);
HALFTONE_ONNX_TYPE(Reciprocal);
HALFTONE_ONNX_TYPE(Abs);
HALFTONE_ONNX_TYPE(Neg);
HALFTONE_ONNX_TYPE(Sin);
HALFTONE_ONNX_TYPE(Cos);
HALFTONE_ONNX_TYPE(Floor);
HALFTONE_ONNX_TYPE(Ceil);
HALFTONE_ONNX_TYPE(Round);
HALFTONE_ONNX_TYPE(HardSwish);
HALFTONE_ONNX_TYPE(Add);
HALFTONE_ONNX_TYPE(Sub);
HALFTONE_ONNX_TYPE(Mul);
HALFTONE_ONNX_TYPE(Div);
HALFTONE_ONNX_TYPE(Max);
HALFTONE_ONNX_TYPE(Min);
HALFTONE_ONNX_TYPE(Pow);
HALFTONE_ONNX_TYPE(PRelu);
HALFTONE_ONNX_TYPE(Equal);
HALFTONE_ONNX_TYPE(Less);
HALFTONE_ONNX_TYPE(LessOrEqual);
HALFTONE_ONNX_TYPE(Greater);
HALFTONE_ONNX_TYPE(GreaterOrEqual);
HALFTONE_ONNX_TYPE(And);
HALFTONE_ONNX_TYPE(Or);
HALFTONE_ONNX_TYPE(Xor);
#undef HALFTONE_ONNX_TYPE

/// One input, with the arithmetic that formulas need.
struct Formula {
  const Step& step;
  Value x = step.wide_input(0);

  Value number(double value) const { return step.number(value, x.dtype); }
  Value one(std::string_view type, const Value& a) const { return step.node(type, {a}); }
  Value two(std::string_view type, const Value& a, const Value& b) const {
    return step.node(type, {a, b});
  }
  Value plus(const Value& a, double b) const { return b == 0 ? a : two("Add", a, number(b)); }
  Value times(const Value& a, double b) const { return b == 1 ? a : two("Mul", a, number(b)); }
  Value where(const Value& condition, const Value& a, const Value& b) const {
    return step.graph().add("Where", {condition, a, b}, a.dtype);
  }
  Value compared(std::string_view type, const Value& a, double b) const {
    return step.graph().add(type, {a, number(b)}, boolean);
  }
};
template <class F> const F& formula_of(const Step& step) { return step.op<Unary<F>>().formula; }

void leaky_relu(const Step& step) {
  step.result(step.node("LeakyRelu", {step.wide_input(0)},
                        {attribute("alpha", formula_of<formula::LeakyRelu>(step).slope)}));
}
/// x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).
void gelu(const Step& step) {
  const Formula f{step};
  const Value cube = f.two("Mul", f.two("Mul", f.x, f.x), f.x);
  const Value inner = f.two("Add", f.x, f.times(cube, 0.044715));
  const Value tanh = f.one("Tanh", f.times(inner, std::sqrt(2 / std::numbers::pi)));
  step.result(f.two("Mul", f.times(f.x, 0.5), f.plus(tanh, 1)));
}
void gelu_erf(const Step& step) {
  const Formula f{step};
  const Value erf = f.one("Erf", f.times(f.x, 1 / std::numbers::sqrt2));
  step.result(f.two("Mul", f.times(f.x, 0.5), f.plus(erf, 1)));
}
void silu(const Step& step) {
  const Formula f{step};
  step.result(f.two("Mul", f.x, f.one("Sigmoid", f.x)));
}
void log_sigmoid(const Step& step) {
  const Formula f{step};
  step.result(f.one("Neg", f.one("Softplus", f.one("Neg", f.x))));
}
void softplus(const Step& step) {
  const Formula f{step};
  const auto& [beta, threshold] = formula_of<formula::Softplus>(step);
  const Value scaled = f.times(f.x, beta);
  step.result(f.where(f.compared("Greater", scaled, threshold), f.x,
                      f.times(f.one("Softplus", scaled), 1 / beta)));
}
void mish(const Step& step) {
  const Formula f{step};
  step.result(f.two("Mul", f.x, f.one("Tanh", f.one("Softplus", f.x))));
}
/// exp(x) - 1 loses the digits of a small x: 2 t / (1 - t) with t = tanh(x / 2) does not.
void expm1(const Step& step) {
  const Formula f{step};
  const Value t = f.one("Tanh", f.times(f.x, 0.5));
  const Value small = f.two("Div", f.times(t, 2), f.two("Sub", f.number(1), t));
  step.result(
      f.where(f.compared("Less", f.one("Abs", f.x), 1), small, f.plus(f.one("Exp", f.x), -1)));
}
/// log(1 + x) loses the digits of a small x: 2 atanh(x / (2 + x)) does not.
void log1p(const Step& step) {
  const Formula f{step};
  const Value small = f.times(f.one("Atanh", f.two("Div", f.x, f.plus(f.x, 2))), 2);
  step.result(
      f.where(f.compared("Less", f.one("Abs", f.x), 0.5), small, f.one("Log", f.plus(f.x, 1))));
}
void log2(const Step& step) {
  const Formula f{step};
  step.result(f.times(f.one("Log", f.x), 1 / std::numbers::ln2));
}
void log10(const Step& step) {
  const Formula f{step};
  step.result(f.times(f.one("Log", f.x), 1 / std::numbers::ln10));
}
void rsqrt(const Step& step) {
  const Formula f{step};
  step.result(f.one("Reciprocal", f.one("Sqrt", f.x)));
}
void square(const Step& step) {
  const Formula f{step};
  step.result(f.two("Mul", f.x, f.x));
}
void pow_scalar(const Step& step) {
  const Formula f{step};
  step.result(f.two("Pow", f.x, f.number(formula_of<formula::PowScalar>(step).exponent)));
}
void clamp(const Step& step) {
  const Formula f{step};
  const auto& [low, high] = formula_of<formula::Clamp>(step);
  const auto bound = [&](double value) { return std::isinf(value) ? Value{} : f.number(value); };
  step.result(step.node("Clip", {f.x, bound(low), bound(high)}));
}
void affine(const Step& step) {
  const Formula f{step};
  const auto& [scale, shift] = formula_of<formula::Affine>(step);
  const Value y = f.plus(f.times(f.x, scale), shift);
  step.result(y);
}
void elu(const Step& step) {
  const Formula f{step};
  const auto& [alpha, scale] = formula_of<formula::Elu>(step);
  step.result(f.times(step.node("Elu", {f.x}, {attribute("alpha", alpha)}), scale));
}

/// The sign of NaN is 0, which ONNX's Sign does not promise.
void sign(const Step& step) {
  const Formula f{step};
  const auto as_number = [&](std::string_view type) {
    return step.cast(f.compared(type, f.x, 0), f.x.dtype);
  };
  step.result(f.two("Sub", as_number("Greater"), as_number("Less")));
}

// --- two inputs

/// The inputs of a division, with the arithmetic that it needs.
struct Division {
  const Step& step;
  Value a, b;

  explicit Division(const Step& of) : step(of), a(of.wide_input(0)), b(of.wide_input(1)) {
    if (!is_floating(a.dtype)) a = step.cast(a, i64), b = step.cast(b, i64);
  }
  Value zero() const { return step.number(0, a.dtype); }
  Value test(std::string_view type, const Value& x, const Value& y) const {
    return step.graph().add(type, {x, y}, boolean);
  }
  Value where(const Value& condition, const Value& x, const Value& y) const {
    return step.graph().add("Where", {condition, x, y}, x.dtype);
  }
  Value is(const Value& x, double value) const {
    return test("Equal", x, step.number(value, x.dtype));
  }
  /// Returns the divisor, but 1 where an integer division would trap in the processor.
  Value safe_divisor() const {
    return where(test("Or", is(b, 0), is(b, -1)), step.number(1, i64), b);
  }
  /// Returns the exact remainder of floats, which has the sign of a, and whether that is not b's.
  std::pair<Value, Value> rest() const {
    const Value rest = step.node("Mod", {a, b}, {attribute("fmod", int64_t(1))});
    const Value differs = test("Xor", test("Less", b, zero()), test("Less", rest, zero()));
    return {rest, test("And", step.node("Not", {is(rest, 0)}), differs)};
  }
};
void remainder(const Step& step) {
  const Division d(step);
  if (!is_floating(d.a.dtype)) return step.result(step.node("Mod", {d.a, d.safe_divisor()}));
  const auto [rest, differs] = d.rest();
  step.result(d.where(differs, step.node("Add", {rest, d.b}), rest));
}
/// As core/formulas.h: of floats, (a - rest) / b is a whole number but for its rounding.
void floor_divide(const Step& step) {
  const Division d(step);
  if (!is_floating(d.a.dtype)) {
    const Value divisor = d.safe_divisor();
    const Value multiple = step.node("Sub", {d.a, step.node("Mod", {d.a, divisor})});
    const Value signed_quotient = step.node("Div", {multiple, divisor});
    const Value quotient = d.where(d.is(d.b, -1), step.node("Neg", {d.a}), signed_quotient);
    return step.result(d.where(d.is(d.b, 0), d.zero(), quotient));
  }
  const auto [rest, differs] = d.rest();
  Value quotient = step.node("Div", {step.node("Sub", {d.a, rest}), d.b});
  const Value one = step.number(1, d.a.dtype), ratio = step.node("Div", {d.a, d.b});
  quotient = d.where(differs, step.node("Sub", {quotient, one}), quotient);
  const Value whole = step.node("Floor", {quotient});
  const Value far =
      d.test("Greater", step.node("Sub", {quotient, whole}), step.number(0.5, d.a.dtype));
  const Value nearest = d.where(far, step.node("Add", {whole, one}), whole);
  const Value signed_zero = step.node("Mul", {ratio, d.zero()});
  step.result(d.where(d.is(d.b, 0), ratio, d.where(d.is(quotient, 0), signed_zero, nearest)));
}
void glu(const Step& step) {
  step.result(step.node("Mul", {step.wide_input(0), step.node("Sigmoid", {step.wide_input(1)})}));
}
void squared_error(const Step& step) {
  const Value difference = step.node("Sub", {step.wide_input(0), step.wide_input(1)});
  step.result(step.node("Mul", {difference, difference}));
}
void absolute_error(const Step& step) {
  step.result(step.node("Abs", {step.node("Sub", {step.wide_input(0), step.wide_input(1)})}));
}

// --- comparisons, logic, choice

template <const char* type> void compared(const Step& step) {
  step.result(step.graph().add(type, {step.wide_input(0), step.wide_input(1)}, boolean));
}
void not_equal(const Step& step) {
  const Inputs both{step.wide_input(0), step.wide_input(1)};
  step.result(step.node("Not", {step.graph().add("Equal", both, boolean)}));
}
template <const char* type> void logical(const Step& step) {
  const auto truth = [&](std::size_t i) { return step.cast(step.input(i), boolean); };
  step.result(step.node(type, {truth(0), truth(1)}));
}
void where(const Step& step) {
  const Value a = step.input(1);
  step.result(step.graph().add("Where", {step.input(0), a, step.input(2)}, a.dtype));
}
/// From a float to an integer: NaN gives 0, and numbers out of range the nearest integer. ONNX
/// leaves both open.
void cast(const Step& step) {
  const DType to = step.op<Cast>().to;
  const Value x = step.input(0);
  if (is_floating(to) || to == boolean || !is_floating(x.dtype))
    return step.result(step.cast(x, to));
  const Value wide = step.wide_input(0);
  const auto where = [&](const Value& condition, const Value& a, const Value& b) {
    return step.graph().add("Where", {condition, a, b}, a.dtype);
  };
  const double most = facts(to).max, least = to == u8 ? 0 : -most - 1;
  const Value number =
      where(step.graph().add("IsNaN", {wide}, boolean), step.number(0, wide.dtype), wide);
  const Value lowest = step.number(least, wide.dtype), highest = step.number(most, wide.dtype);
  if (size_of(to) < 4)  // floats hold its bounds exactly
    return step.result(step.cast(step.node("Clip", {number, lowest, highest}), to));
  const auto limited = [&](std::string_view test, const Value& bound, double limit,
                           const Value& otherwise) {
    return where(step.graph().add(test, {wide, bound}, boolean),
                 step.graph().constant(full({}, limit, to)), otherwise);
  };
  const Value above = limited("GreaterOrEqual", highest, most, step.cast(number, to));
  step.result(limited("LessOrEqual", lowest, least, above));
}
}  // namespace

std::vector<Conversion> formula_conversions() {
  using namespace formula;
  return {conversion<Unary<Relu>>(exact_node<Relu_type>),
          conversion<Unary<LeakyRelu>>(leaky_relu),
          conversion<Unary<Gelu>>(gelu),
          conversion<Unary<GeluErf>>(gelu_erf),
          conversion<Unary<Erf>>(one_node<Erf_type>),
          conversion<Unary<Sigmoid>>(one_node<Sigmoid_type>),
          conversion<Unary<LogSigmoid>>(log_sigmoid),
          conversion<Unary<Silu>>(silu),
          conversion<Unary<Tanh>>(one_node<Tanh_type>),
          conversion<Unary<Softplus>>(softplus),
          conversion<Unary<Exp>>(one_node<Exp_type>),
          conversion<Unary<Expm1>>(expm1),
          conversion<Unary<Log>>(one_node<Log_type>),
          conversion<Unary<Log2>>(log2),
          conversion<Unary<Log10>>(log10),
          conversion<Unary<Log1p>>(log1p),
          conversion<Unary<Sqrt>>(one_node<Sqrt_type>),
          conversion<Unary<Rsqrt>>(rsqrt),
          conversion<Unary<Reciprocal>>(one_node<Reciprocal_type>),
          conversion<Unary<PowScalar>>(pow_scalar),
          conversion<Unary<Square>>(square),
          conversion<Unary<Abs>>(exact_node<Abs_type>),
          conversion<Unary<Neg>>(exact_node<Neg_type>),
          conversion<Unary<Clamp>>(clamp),
          conversion<Unary<Affine>>(affine),
          conversion<Unary<Sin>>(one_node<Sin_type>),
          conversion<Unary<Cos>>(one_node<Cos_type>),
          conversion<Unary<Sign>>(sign),
          conversion<Unary<Floor>>(one_node<Floor_type>),
          conversion<Unary<Ceil>>(one_node<Ceil_type>),
          conversion<Unary<Round>>(one_node<Round_type>),
          conversion<Unary<Elu>>(elu),
          conversion<Unary<Mish>>(mish),
          conversion<Unary<Hardswish>>(one_node<HardSwish_type>),
          conversion<Binary<Add>>(one_node<Add_type>),
          conversion<Binary<Sub>>(one_node<Sub_type>),
          conversion<Binary<Mul>>(one_node<Mul_type>),
          conversion<Binary<Div>>(one_node<Div_type>),
          conversion<Binary<Maximum>>(one_node<Max_type>),
          conversion<Binary<Minimum>>(one_node<Min_type>),
          conversion<Binary<Remainder>>(remainder),
          conversion<Binary<FloorDivide>>(floor_divide),
          conversion<Binary<Glu>>(glu),
          conversion<Binary<Prelu>>(one_node<PRelu_type>),
          conversion<Binary<Pow>>(one_node<Pow_type>),
          conversion<Binary<SquaredError>>(squared_error),
          conversion<Binary<AbsoluteError>>(absolute_error),
          conversion<Compare<Equal>>(compared<Equal_type>),
          conversion<Compare<NotEqual>>(not_equal),
          conversion<Compare<Less>>(compared<Less_type>),
          conversion<Compare<LessEqual>>(compared<LessOrEqual_type>),
          conversion<Compare<Greater>>(compared<Greater_type>),
          conversion<Compare<GreaterEqual>>(compared<GreaterOrEqual_type>),
          conversion<Compare<LogicalAnd>>(logical<And_type>),
          conversion<Compare<LogicalOr>>(logical<Or_type>),
          conversion<Compare<LogicalXor>>(logical<Xor_type>),
          conversion<Where>(where),
          conversion<Cast>(cast)};
}

}  // namespace halftone::onnx
