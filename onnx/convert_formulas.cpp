// The table of conversions; formulas, reductions, shapes.
#include <cmath>
#include <numbers>
#include <unordered_map>
#include <utility>

#include <halftone/autograd/ops.h>
#include <halftone/onnx/conversions.h>

namespace halftone::onnx {

const Conversion* conversion_of(const OpInfo& op) {
  static const auto table = [] {
    std::unordered_map<const OpInfo*, Conversion> all;
    for (const auto& list : {formula_conversions(), shape_conversions(), reduction_conversions(),
                             product_conversions(), image_conversions(), recurrent_conversions(),
                             quantizer_conversions()})
      for (const Conversion& each : list) all.emplace(each.info, each);
    return all;
  }();
  const auto found = table.find(&op);
  return found == table.end() ? nullptr : &found->second;
}

// Elementwise operations. ONNX's operators are used where they compute the same; other formulas are
// written out. Short floats are computed in f32 and rounded once, as halftone's kernels do.

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
HALFTONE_ONNX_TYPE(Tan);
HALFTONE_ONNX_TYPE(Asin);
HALFTONE_ONNX_TYPE(Acos);
HALFTONE_ONNX_TYPE(Atan);
HALFTONE_ONNX_TYPE(Sinh);
HALFTONE_ONNX_TYPE(Cosh);
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
void exp2(const Step& step) {
  const Formula f{step};
  step.result(f.two("Pow", f.number(2), f.x));
}
void logit(const Step& step) {
  const Formula f{step};
  const double eps = formula_of<formula::Logit>(step).eps;
  const Value x = eps < 0 ? f.x : step.node("Clip", {f.x, f.number(eps), f.number(1 - eps)});
  step.result(f.one("Log", f.two("Div", x, f.two("Sub", f.number(1), x))));
}
Value towards_0(const Formula& f) {
  return f.where(f.compared("Less", f.x, 0), f.one("Ceil", f.x), f.one("Floor", f.x));
}
void trunc(const Step& step) {
  const Formula f{step};
  step.result(is_floating(f.x.dtype) ? towards_0(f) : f.x);
}
void frac(const Step& step) {
  const Formula f{step};
  step.result(f.two("Sub", f.x, towards_0(f)));
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
void fmod(const Step& step) {
  const Division d(step);
  const Value divisor = is_floating(d.a.dtype) ? d.b : d.safe_divisor();
  step.result(step.node("Mod", {d.a, divisor}, {attribute("fmod", int64_t(1))}));
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
void gated(const Step& step, const Value& gate, const Value& up) {
  const Value active = step.node("Mul", {gate, step.node("Sigmoid", {gate})});
  step.result(step.node("Mul", {active, up}));
}
void swiglu(const Step& step) { gated(step, step.wide_input(0), step.wide_input(1)); }
void packed_swiglu(const Step& step) {
  const Value x = step.wide_input(0);
  const int64_t n = step.tensor(0).size(-1) / 2;
  const std::vector<Value> halves =
      step.graph().add("Split", {x, step.graph().integers(std::vector<int64_t>{n, n})}, x.dtype, 2,
                       {attribute("axis", int64_t(-1))});
  gated(step, halves[0], halves[1]);
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
          conversion<Unary<Tan>>(one_node<Tan_type>),
          conversion<Unary<Asin>>(one_node<Asin_type>),
          conversion<Unary<Acos>>(one_node<Acos_type>),
          conversion<Unary<Atan>>(one_node<Atan_type>),
          conversion<Unary<Sinh>>(one_node<Sinh_type>),
          conversion<Unary<Cosh>>(one_node<Cosh_type>),
          conversion<Unary<Exp2>>(exp2),
          conversion<Unary<Logit>>(logit),
          conversion<Unary<Trunc>>(trunc),
          conversion<Unary<Frac>>(frac),
          conversion<Unary<Sign>>(sign),
          conversion<Unary<Floor>>(one_node<Floor_type>),
          conversion<Unary<Ceil>>(one_node<Ceil_type>),
          conversion<Unary<Round>>(one_node<Round_type>),
          conversion<Unary<Elu>>(elu),
          conversion<Unary<Mish>>(mish),
          conversion<Unary<Hardswish>>(one_node<HardSwish_type>),
          conversion<Binary<Add>>(one_node<Add_type>),
          conversion<AddBeforeNorm>(one_node<Add_type>),
          conversion<Binary<Sub>>(one_node<Sub_type>),
          conversion<Binary<Mul>>(one_node<Mul_type>),
          conversion<Binary<Div>>(one_node<Div_type>),
          conversion<Binary<Maximum>>(one_node<Max_type>),
          conversion<Binary<Minimum>>(one_node<Min_type>),
          conversion<Binary<Remainder>>(remainder),
          conversion<Binary<Fmod>>(fmod),
          conversion<Binary<FloorDivide>>(floor_divide),
          conversion<Binary<Glu>>(glu),
          conversion<Binary<Swiglu>>(swiglu),
          conversion<PackedSwiglu>(packed_swiglu),
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

// Reductions, softmax and normalizations. Short floats are widened first, as halftone's kernels do.

namespace {
Value reduced(const Step& step, std::string_view type, const Value& x,
              const std::vector<int64_t>& dims, bool keep) {
  const Value axes = dims.empty() ? Value{} : step.graph().integers(dims);
  return step.node(type, {x, axes}, {attribute("keepdims", int64_t(keep))});
}
Value reduced(const Step& step, std::string_view type, const Value& x, const ReduceDims& over) {
  return reduced(step, type, x, std::vector(over.dims.begin(), over.dims.end()), over.keep);
}
/// Sums and products of integers and bools are i64.
Value summand(const Step& step) {
  const Value x = step.wide_input(0);
  return is_floating(x.dtype) ? x : step.cast(x, i64);
}

void sum(const Step& step) {
  step.result(reduced(step, "ReduceSum", summand(step), step.op<Sum>().over));
}
void mean(const Step& step) {
  step.result(reduced(step, "ReduceMean", step.wide_input(0), step.op<Mean>().over));
}
void max(const Step& step) {
  step.result(reduced(step, "ReduceMax", step.wide_input(0), step.op<Max>().over));
}
void min(const Step& step) {
  step.result(reduced(step, "ReduceMin", step.wide_input(0), step.op<Min>().over));
}
void prod(const Step& step) {
  step.result(reduced(step, "ReduceProd", summand(step), step.op<Prod>().over));
}
void norm(const Step& step) {
  const Norm& op = step.op<Norm>();
  const Value x = step.wide_input(0);
  if (op.p == 2) return step.result(reduced(step, "ReduceL2", x, op.over));
  if (op.p == 1) return step.result(reduced(step, "ReduceL1", x, op.over));
  const Value magnitude = step.node("Abs", {x});
  if (std::isinf(op.p))
    return step.result(reduced(step, op.p > 0 ? "ReduceMax" : "ReduceMin", magnitude, op.over));
  if (op.p == 0) step.refuse("of order 0");
  const Value powers = step.node("Pow", {magnitude, step.number(op.p, x.dtype)});
  const Value total = reduced(step, "ReduceSum", powers, op.over);
  step.result(step.node("Pow", {total, step.number(1 / op.p, x.dtype)}));
}
void var(const Step& step) {
  const Var& op = step.op<Var>();
  const std::vector<int64_t> dims(op.over.dims.begin(), op.over.dims.end());
  const Size count = step.size_of([&](std::size_t pass) {
    return step.tensor(0, pass).numel() / std::max<int64_t>(step.output(pass).numel(), 1);
  });
  if (count.per_row != 0) step.refuse("over the batch");
  const Value x = step.wide_input(0);
  const Value distance = step.node("Sub", {x, reduced(step, "ReduceMean", x, dims, true)});
  const Value squares = step.node("Mul", {distance, distance});
  const Value total = reduced(step, "ReduceSum", squares, op.over);
  step.result(step.node("Div", {total, step.number(double(count.fixed) - op.correction, x.dtype)}));
}
template <bool largest> void place_of_extreme(const Step& step) {
  step.result(
      step.graph().add(largest ? "ArgMax" : "ArgMin", {step.wide_input(0)}, i64,
                       {attribute("axis", int64_t(-1)), attribute("keepdims", int64_t(0))}));
}
template <class Op, bool largest> void truth(const Step& step) {
  const Value x = step.cast(step.cast(step.input(0), boolean), i32);
  step.result(step.cast(reduced(step, largest ? "ReduceMax" : "ReduceMin", x, step.op<Op>().over),
                        boolean));
}
void argsort(const Step& step) {
  const Value x = step.wide_input(0);
  const Tensor& sorted = step.tensor(0);
  if (sorted.rank() == 0) step.refuse("of a scalar");
  const Value count = step.graph().integers(Sizes{step.input_sizes(0).back()});
  const std::vector<Value> both =
      step.graph().add("TopK", {x, count}, i64, 2,
                       {attribute("axis", int64_t(-1)),
                        attribute("largest", int64_t(step.op<ArgSort>().descending))});
  step.result(both[1]);
}
void cumulative_sum(const Step& step) {
  const Value axis = step.graph().constant(scalar(step.rank(0) - 1, i64));
  step.result(step.node("CumSum", {summand(step), axis}));
}

/// ONNX has no running product: multiplies by the products of 1, 2, 4, ... neighbors before.
void cumulative_product(const Step& step) {
  const Size size = step.input_sizes(0).back();
  if (size.per_row != 0) step.refuse("over the batch");
  Graph& graph = step.graph();
  const auto one = [&](int64_t value) { return graph.integers(std::vector<int64_t>{value}); };
  Value y = summand(step);
  const auto rank = std::size_t(step.rank(0));
  for (int64_t by = 1; by < size.fixed; by *= 2) {
    std::vector<int64_t> amounts(2 * rank, 0);
    amounts[rank - 1] = by;
    const Value before =
        step.node("Slice", {y, one(0), one(size.fixed - by), one(int64_t(rank) - 1)});
    const Value factor =
        step.node("Pad", {before, graph.integers(amounts), step.number(1, y.dtype)},
                  {attribute("mode", "constant")});
    y = step.node("Mul", {y, factor});
  }
  step.result(y);
}

template <const char* type> void along_last(const Step& step) {
  step.result(step.node(type, {step.wide_input(0)}, {attribute("axis", int64_t(-1))}));
}
constexpr char softmax_type[] = "Softmax", log_softmax_type[] = "LogSoftmax";

void log_sum_exp(const Step& step) {
  step.result(reduced(step, "ReduceLogSumExp", step.wide_input(0), {-1}, false));
}

// --- normalizations

Value filled(const Step& step, const Shape& shape, double value, DType dtype) {
  return step.graph().constant(full(shape, value, dtype));
}
Value optional_in(const Step& step, std::size_t input, DType dtype) {
  return step.has(input) ? step.cast(step.input(input), dtype) : Value{};
}

void layer_norm(const Step& step) {
  const LayerNorm& op = step.op<LayerNorm>();
  const Value x = step.wide_input(0), weight = optional_in(step, 1, x.dtype);
  step.result(
      step.node("LayerNormalization",
                {x, weight.defined() ? weight : filled(step, op.normalized, 1, x.dtype),
                 optional_in(step, 2, x.dtype)},
                {attribute("axis", -int64_t(op.normalized.rank())), attribute("epsilon", op.eps)}));
}
void rms_norm(const Step& step) {
  const RmsNorm& op = step.op<RmsNorm>();
  const Value x = step.wide_input(0), weight = optional_in(step, 1, x.dtype);
  std::vector<int64_t> dims;
  for (int i = op.normalized.rank(); i > 0; --i) dims.push_back(-i);
  const Value squares = reduced(step, "ReduceMean", step.node("Mul", {x, x}), dims, true);
  const Value root = step.node("Sqrt", {step.node("Add", {squares, step.number(op.eps, x.dtype)})});
  const Value y = step.node("Div", {x, root});
  step.result(weight.defined() ? step.node("Mul", {y, weight}) : y);
}

/// Normalizes each of `groups` parts of the channels of each sample.
void normalize_groups(const Step& step, int64_t groups, double eps) {
  const Value x = step.wide_input(0);
  const Sizes sizes = step.input_sizes(0);
  const int64_t channels = step.tensor(0).size(1);
  int64_t part = channels / groups;
  for (std::size_t i = 2; i < sizes.size(); ++i) {
    if (sizes[i].per_row != 0) step.refuse("of images whose size depends on the batch");
    part *= sizes[i].fixed;
  }
  const Value parts = step.reshape(x, {sizes[0], groups, part});
  Value y =
      step.node("InstanceNormalization",
                {parts, filled(step, {groups}, 1, x.dtype), filled(step, {groups}, 0, x.dtype)},
                {attribute("epsilon", eps)});
  y = step.reshape(y, sizes);
  Sizes along(std::size_t(step.rank(0)), Size(1));
  along[1] = channels;
  const auto spread = [&](std::size_t input) {
    return step.reshape(optional_in(step, input, x.dtype), along);
  };
  if (step.has(1)) y = step.node("Mul", {y, spread(1)});
  if (step.has(2)) y = step.node("Add", {y, spread(2)});
  step.result(y);
}
void group_norm(const Step& step) {
  normalize_groups(step, step.op<GroupNorm>().groups, step.op<GroupNorm>().eps);
}
void instance_norm(const Step& step) {
  normalize_groups(step, step.tensor(0).size(1), step.op<InstanceNorm>().norm.eps);
}

Value normalized_batch(const Step& step, const BatchNorm& op) {
  if (op.options.training || !op.running.mean.defined())
    step.refuse("with the statistics of the batch");
  const Value x = step.wide_input(0);
  const Shape channels{step.tensor(0).size(1)};
  const auto or_filled = [&](std::size_t input, double value) {
    const Value given = optional_in(step, input, x.dtype);
    return given.defined() ? given : filled(step, channels, value, x.dtype);
  };
  const auto running = [&](const Tensor& t) { return step.cast(step.known(t), x.dtype); };
  return step.node(
      "BatchNormalization",
      {x, or_filled(1, 1), or_filled(2, 0), running(op.running.mean), running(op.running.variance)},
      {attribute("epsilon", op.options.eps)});
}
void batch_norm(const Step& step) { step.result(normalized_batch(step, step.op<BatchNorm>())); }
void batch_norm_relu(const Step& step) {
  Value y = normalized_batch(step, step.op<BatchNormRelu>().norm);
  if (step.has(3)) y = step.node("Add", {y, step.wide_input(3)});
  step.result(step.node("Relu", {y}));
}
}  // namespace

std::vector<Conversion> reduction_conversions() {
  return {conversion<Sum>(sum),
          conversion<Mean>(mean),
          conversion<Max>(max),
          conversion<Min>(min),
          conversion<Prod>(prod),
          conversion<Norm>(norm),
          conversion<Var>(var),
          conversion<ArgMax>(place_of_extreme<true>),
          conversion<ArgMin>(place_of_extreme<false>),
          conversion<Any>(truth<Any, true>),
          conversion<All>(truth<All, false>),
          conversion<ArgSort>(argsort),
          conversion<CumulativeSum>(cumulative_sum),
          conversion<CumulativeProduct>(cumulative_product),
          conversion<Softmax>(along_last<softmax_type>),
          conversion<LogSoftmax>(along_last<log_softmax_type>),
          conversion<LogSumExp>(log_sum_exp),
          conversion<LayerNorm>(layer_norm),
          conversion<RmsNorm>(rms_norm),
          conversion<GroupNorm>(group_norm),
          conversion<InstanceNorm>(instance_norm),
          conversion<BatchNorm>(batch_norm),
          conversion<BatchNormRelu>(batch_norm_relu)};
}

// Changes of shape, and elements picked by indices. Sizes that depend on the batch are computed in
// the graph.

namespace {
std::vector<int64_t> list_of(const Dims& dims) { return {dims.begin(), dims.end()}; }

void reshape(const Step& step) { step.result(step.reshape(step.input(0), step.output_sizes())); }
void permute(const Step& step) {
  step.result(step.transpose(step.input(0), list_of(step.op<Permute>().order)));
}
void expand(const Step& step) {
  const Value shape = step.graph().integers(step.output_sizes());
  step.result(step.node("Expand", {step.input(0), shape}));
}
void slice(const Step& step) {
  const int64_t dim = step.op<Slice>().dim, stride = step.op<Slice>().step;
  const Size start = step.size_of([&](std::size_t pass) { return step.op<Slice>(pass).start; });
  const Size end = step.size_of([&](std::size_t pass) {
    const Slice& op = step.op<Slice>(pass);
    return op.count == 0 ? op.start : op.start + (op.count - 1) * op.step + 1;
  });
  Graph& graph = step.graph();
  step.result(step.node(
      "Slice",
      {step.input(0), graph.integers(Sizes{start}), graph.integers(Sizes{end}),
       graph.integers(std::vector<int64_t>{dim}), graph.integers(std::vector<int64_t>{stride})}));
}
void cat(const Step& step) {
  std::vector<Value> inputs;
  for (std::size_t i = 0; i < step.input_count(); ++i) inputs.push_back(step.input(i));
  step.result(step.node("Concat", inputs, {attribute("axis", int64_t(step.op<Cat>().dim))}));
}
void pad(const Step& step) {
  const Pad& op = step.op<Pad>();
  std::vector<int64_t> amounts = list_of(op.before);
  amounts.insert(amounts.end(), op.after.begin(), op.after.end());
  const Value x = step.input(0);
  step.result(step.node("Pad", {x, step.graph().integers(amounts), step.number(op.value, x.dtype)},
                        {attribute("mode", "constant")}));
}
void same(const Step& step) { step.result(step.input(0)); }
void flip(const Step& step) {
  const std::vector<int64_t> dims = list_of(step.op<Flip>().dims);
  const auto all = [&](int64_t value) {
    return step.graph().integers(std::vector<int64_t>(dims.size(), value));
  };
  step.result(step.node("Slice", {step.input(0), all(-1), all(std::numeric_limits<int64_t>::min()),
                                  step.graph().integers(dims), all(-1)}));
}

Value wide_indices(const Step& step, std::size_t input) {
  return step.cast(step.input(input), i64);
}

void gather(const Step& step) {
  step.result(step.node("GatherElements", {step.input(0), wide_indices(step, 1)},
                        {attribute("axis", int64_t(step.op<Gather>().dim))}));
}
void scatter_add(const Step& step) {
  step.result(step.node(
      "ScatterElements", {step.wide_input(0), wide_indices(step, 1), step.wide_input(2)},
      {attribute("axis", int64_t(step.op<ScatterAdd>().dim)), attribute("reduction", "add")}));
}
void embedding(const Step& step) {
  step.result(
      step.node("Gather", {step.input(0), wide_indices(step, 1)}, {attribute("axis", int64_t(0))}));
}
}  // namespace

std::vector<Conversion> shape_conversions() {
  return {conversion<Reshape>(reshape, true),
          conversion<Permute>(permute),
          conversion<Expand>(expand, true),
          conversion<Slice>(slice, true),
          conversion<Cat>(cat),
          conversion<Pad>(pad),
          conversion<Contiguous>(same),
          conversion<Flip>(flip),
          conversion<Gather>(gather),
          conversion<ScatterAdd>(scatter_add),
          conversion<Embedding>(embedding)};
}

}  // namespace halftone::onnx
