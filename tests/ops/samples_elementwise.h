// The definition of each formula: truth(), the value in f64 through the C library, and kinks(), the
// points without a derivative.
#pragma once

#include "ops/samples_case.h"

namespace halftone::test {

inline double logistic(double x) { return 1 / (1 + std::exp(-x)); }

inline double truth(formula::Relu, double x) { return x > 0 ? x : 0; }
inline double truth(formula::LeakyRelu f, double x) { return x > 0 ? x : f.slope * x; }
inline double truth(formula::Gelu, double x) {
  return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * std::pow(x, 3))));
}
inline double truth(formula::GeluErf, double x) { return x / 2 * std::erfc(-x / std::sqrt(2)); }
inline double truth(formula::Erf, double x) { return std::erf(x); }
inline double truth(formula::LogSigmoid, double x) { return -std::log1p(std::exp(-x)); }
inline double truth(formula::Sigmoid, double x) { return logistic(x); }
inline double truth(formula::Silu, double x) { return x * logistic(x); }
inline double truth(formula::Tanh, double x) { return std::tanh(x); }
inline double truth(formula::Softplus f, double x) {
  return x * f.beta > f.threshold ? x : std::log1p(std::exp(f.beta * x)) / f.beta;
}
inline double truth(formula::Exp, double x) { return std::exp(x); }
inline double truth(formula::Expm1, double x) { return std::expm1(x); }
inline double truth(formula::Log, double x) { return std::log(x); }
inline double truth(formula::Log2, double x) { return std::log2(x); }
inline double truth(formula::Log10, double x) { return std::log10(x); }
inline double truth(formula::Log1p, double x) { return std::log1p(x); }
inline double truth(formula::Sqrt, double x) { return std::sqrt(x); }
inline double truth(formula::Rsqrt, double x) { return 1 / std::sqrt(x); }
inline double truth(formula::Reciprocal, double x) { return 1 / x; }
inline double truth(formula::PowScalar f, double x) { return std::pow(x, f.exponent); }
inline double truth(formula::Square, double x) { return x * x; }
inline double truth(formula::Abs, double x) { return std::abs(x); }
inline double truth(formula::Neg, double x) { return -x; }
inline double truth(formula::Clamp f, double x) { return std::min(std::max(x, f.low), f.high); }
inline double truth(formula::Affine f, double x) { return f.scale * x + f.shift; }

inline double truth(formula::Sin, double x) { return std::sin(x); }
inline double truth(formula::Cos, double x) { return std::cos(x); }
inline double truth(formula::Sign, double x) { return double(x > 0) - double(x < 0); }
inline double truth(formula::Floor, double x) { return std::floor(x); }
inline double truth(formula::Ceil, double x) { return std::ceil(x); }
inline double truth(formula::Round, double x) { return std::nearbyint(x); }
inline double truth(formula::Elu f, double x) {
  return f.scale * (x > 0 ? x : f.alpha * std::expm1(x));
}
inline double truth(formula::Mish, double x) { return x * std::tanh(std::log1p(std::exp(x))); }
inline double truth(formula::Hardswish, double x) {
  return x * std::min(std::max(x + 3, 0.0), 6.0) / 6;
}
inline double truth(formula::Tan, double x) { return std::tan(x); }
inline double truth(formula::Asin, double x) { return std::asin(x); }
inline double truth(formula::Acos, double x) { return std::acos(x); }
inline double truth(formula::Atan, double x) { return std::atan(x); }
inline double truth(formula::Sinh, double x) { return std::sinh(x); }
inline double truth(formula::Cosh, double x) { return std::cosh(x); }
inline double truth(formula::Exp2, double x) { return std::exp2(x); }
inline double truth(formula::Erfinv, double x) {
  long double low = -2, high = 2;  // enough for |x| below 0.995
  for (int i = 0; i < 64; ++i) {
    const long double middle = (low + high) / 2;
    (std::erf(middle) < x ? low : high) = middle;
  }
  return double(low);
}
inline double truth(formula::Logit f, double x) {
  if (f.eps >= 0) x = std::min(std::max(x, f.eps), 1 - f.eps);
  return std::log(x / (1 - x));
}
inline double truth(formula::Trunc, double x) { return std::trunc(x); }
inline double truth(formula::Frac, double x) { return x - std::trunc(x); }

inline double truth(formula::Atan2, double a, double b) { return std::atan2(a, b); }
inline double truth(formula::LogAddExp, double a, double b) {
  return std::log(std::exp(a) + std::exp(b));
}
inline double truth(formula::Fmod, double a, double b) { return std::fmod(a, b); }
inline double truth(formula::XLogY, double a, double b) { return a * std::log(b); }
inline double truth(formula::Add, double a, double b) { return a + b; }
inline double truth(formula::Sub, double a, double b) { return a - b; }
inline double truth(formula::Mul, double a, double b) { return a * b; }
inline double truth(formula::Div, double a, double b) { return a / b; }
inline double truth(formula::Maximum, double a, double b) { return std::fmax(a, b); }
inline double truth(formula::Minimum, double a, double b) { return std::fmin(a, b); }
inline double truth(formula::Remainder, double a, double b) { return a - b * std::floor(a / b); }
inline double truth(formula::FloorDivide, double a, double b) { return std::floor(a / b); }
inline double truth(formula::Glu, double a, double b) { return a * logistic(b); }
inline double truth(formula::Swiglu, double a, double b) { return a * logistic(a) * b; }
inline double truth(formula::Prelu, double a, double b) { return a > 0 ? a : a * b; }
inline double truth(formula::Pow, double a, double b) { return std::pow(a, b); }
inline double truth(formula::SquaredError, double a, double b) { return std::pow(a - b, 2); }
inline double truth(formula::AbsoluteError, double a, double b) { return std::abs(a - b); }
inline double truth(formula::SmoothL1 f, double a, double b) {
  const double d = std::abs(a - b);
  return d < f.beta ? d * d / (2 * f.beta) : d - f.beta / 2;
}
inline double truth(formula::Huber f, double a, double b) {
  const double d = std::abs(a - b);
  return d < f.delta ? d * d / 2 : f.delta * (d - f.delta / 2);
}
inline double truth(formula::KlDivergence, double a, double b) { return b * (std::log(b) - a); }
inline double truth(formula::KlDivergenceOfLogs, double a, double b) {
  return std::exp(b) * (b - a);
}
inline double truth(formula::BinaryCrossEntropy, double a, double b) {
  return -b * std::log(a) - (1 - b) * std::log(1 - a);
}
inline double truth(formula::BceWithLogits, double a, double b) {
  return -b * std::log(logistic(a)) - (1 - b) * std::log(1 - logistic(a));
}

inline bool truth(formula::Equal, double a, double b) { return a == b; }
inline bool truth(formula::NotEqual, double a, double b) { return a != b; }
inline bool truth(formula::Less, double a, double b) { return a < b; }
inline bool truth(formula::LessEqual, double a, double b) { return a <= b; }
inline bool truth(formula::Greater, double a, double b) { return a > b; }
inline bool truth(formula::GreaterEqual, double a, double b) { return a >= b; }
inline bool truth(formula::LogicalAnd, double a, double b) { return a != 0 && b != 0; }
inline bool truth(formula::LogicalOr, double a, double b) { return a != 0 || b != 0; }
inline bool truth(formula::LogicalXor, double a, double b) { return (a != 0) != (b != 0); }

template <class F> std::vector<double> kinks(const F&) { return {}; }
inline std::vector<double> kinks(const formula::Relu&) { return {0}; }
inline std::vector<double> kinks(const formula::LeakyRelu&) { return {0}; }
inline std::vector<double> kinks(const formula::Abs&) { return {0}; }
inline std::vector<double> kinks(const formula::Prelu&) { return {0}; }
inline std::vector<double> kinks(const formula::Clamp& f) { return {f.low, f.high}; }
inline std::vector<double> kinks(const formula::Sign&) { return {0}; }
inline std::vector<double> kinks(const formula::Floor&) { return {-3, -2, -1, 0, 1, 2, 3}; }
inline std::vector<double> kinks(const formula::Ceil&) { return {-3, -2, -1, 0, 1, 2, 3}; }
inline std::vector<double> kinks(const formula::Round&) {
  return {-2.5, -1.5, -0.5, 0.5, 1.5, 2.5};
}
inline std::vector<double> kinks(const formula::Trunc&) { return {-3, -2, -1, 1, 2, 3}; }
inline std::vector<double> kinks(const formula::Frac&) { return {-3, -2, -1, 1, 2, 3}; }
inline std::vector<double> kinks(const formula::Logit& f) {
  return {std::max(f.eps, 0.0), 1 - std::max(f.eps, 0.0)};
}
inline std::vector<double> kinks(const formula::Elu&) { return {0}; }
inline std::vector<double> kinks(const formula::Hardswish&) { return {-3, 3}; }

// Samples of the elementwise operations. Each formula has one line of its own
// above.

template <class F> constexpr Domain domain_of() {
  if constexpr (requires { F::domain; }) return F::domain;
  else return {-3, 3};
}

/// Formulas of two inputs that jump if the quotient is a whole number: the first input is a tenth
/// away from the multiples of every second one.
template <class F>
inline constexpr bool jumps =
    is_in_list<F, TypeList<formula::Remainder, formula::FloorDivide, formula::Fmod>>;

/// Formulas of two inputs with a kink if they are equal, or one apart: their inputs come from two
/// interleaved grids of eighths, which have no number in common.
template <class F>
inline constexpr bool kinked =
    is_in_list<F, TypeList<formula::Maximum, formula::Minimum, formula::AbsoluteError,
                           formula::SmoothL1, formula::Huber>>;

// --- cases

template <class F> Case unary_case(std::string name, F f, const Shape& shape) {
  return {.name = std::move(name),
          .inputs = {{.shape = shape, .domain = domain_of<F>(), .avoid = kinks(f)}},
          .call = [f](const Tensors& in) { return unary(f, in[0]); },
          .oracle =
              [f](const Arrays& in) {
                return array_of(in[0].shape, [&](const Dims& i) { return truth(f, in[0][i]); });
              },
          .condition = 4};  // f32 elementary functions: a few units in the last place
}

/// The same formula with other attributes than its defaults.
inline std::vector<Case> attribute_cases(formula::LeakyRelu) {
  return {unary_case("slope", formula::LeakyRelu{0.3}, {4, 5})};
}
inline std::vector<Case> attribute_cases(formula::Softplus) {
  return {unary_case("beta and threshold", formula::Softplus{2.5, 4}, {4, 5})};
}
inline std::vector<Case> attribute_cases(formula::PowScalar) {
  return {unary_case("square root", formula::PowScalar{0.5}, {4, 5}),
          unary_case("negative", formula::PowScalar{-1.5}, {4, 5}),
          unary_case("zero", formula::PowScalar{0}, {4, 5})};
}
inline std::vector<Case> attribute_cases(formula::Clamp) {
  return {unary_case("bounds", formula::Clamp{-0.25, 0.75}, {4, 5})};
}
inline std::vector<Case> attribute_cases(formula::Affine) {
  return {unary_case("scale and shift", formula::Affine{-2, 3}, {4, 5})};
}
inline std::vector<Case> attribute_cases(formula::Logit) {
  return {unary_case("eps", formula::Logit{0.3}, {4, 5})};
}
inline std::vector<Case> attribute_cases(formula::Elu) {
  return {unary_case("alpha", formula::Elu{0.4}, {4, 5}),
          unary_case("scale", formula::Elu{1.5, 0.7}, {4, 5})};
}
inline std::vector<Case> attribute_cases(formula::Mish) {
  Case far = unary_case("far out", formula::Mish{}, {2, 4});
  far.inputs[0].given = {-60, -25, -12, 12, 19.5, 21, 45, 88};
  return {far};
}
template <class F> std::vector<Case> attribute_cases(F) { return {}; }

/// The result of a formula for integers.
template <class F> Case integer_case(F f) {
  return {.name = "integers",
          .inputs = {integers({2, 4}, {-7, -1, 0, 1, 2, 300, -70000, 5})},
          .call = [f](const Tensors& in) { return unary(f, in[0]); },
          .oracle =
              [f](const Arrays& in) {
                return array_of(in[0].shape, [&](const Dims& i) { return truth(f, in[0][i]); });
              },
          .output = i64,
          .gradient = false};
}
inline ErrorCase formula_dtype_error(std::string_view op, bool integers_too,
                                     std::function<void(const Tensor&)> call) {
  const Tensor wrong = zeros({2}, integers_too ? f8_e4m3 : i64);
  return error<DTypeError>("[" + std::string(op) + "] needs " + (integers_too ? "integers, " : "") +
                               "f64, f32, f16 or bf16, got [2] ",
                           [=] { call(wrong); });
}

template <class F> struct Samples<Unary<F>> {
  static OpSamples make() {
    std::vector<Case> cases;
    for (const Shape& shape : {Shape{}, Shape{7}, Shape{3, 5}, Shape{2, 3, 2, 3}, Shape{0, 3}})
      cases.push_back(unary_case("one of rank " + std::to_string(shape.rank()), F{}, shape));
    cases.push_back(unary_case("longer than a block", F{}, {3, 701}));
    for (Case& more : attribute_cases(F{})) cases.push_back(std::move(more));
    if constexpr (is_in_list<F, TypeList<formula::Affine, formula::Clamp>>)
      cases.push_back(integer_case(F{-2, 3}));
    else if constexpr (takes_integers<F>) cases.push_back(integer_case(F{}));
    const std::string name(F::info.name);
    return {.cases = cases,
            .errors = {formula_dtype_error(name, takes_integers<F>,
                                           [](const Tensor& x) { unary(F{}, x); }),
                       REFUSES(UsageError, "[" + name + "] an input is undefined. Pass a tensor.",
                               unary(F{}, Tensor{}))},
            .any_dtype = takes_integers<F>};
  }
};

/// Two input shapes and their common broadcast shape.
struct Pairing {
  Shape a, b, result;
};
inline std::vector<Pairing> pairings() {
  return {{{}, {}, {}},
          {{3, 5}, {3, 5}, {3, 5}},
          {{3, 5}, {5}, {3, 5}},
          {{5}, {3, 5}, {3, 5}},
          {{3, 1}, {1, 4}, {3, 4}},
          {{2, 1, 3}, {4, 1}, {2, 4, 3}},
          {{}, {2, 3}, {2, 3}},
          {{2, 3, 2, 2}, {3, 1, 1}, {2, 3, 2, 2}},
          {{0, 3}, {1, 3}, {0, 3}}};
}
inline std::string pairing_name(const Pairing& p) {
  std::ostringstream text;
  text << p.a << " with " << p.b;
  return text.str();
}

inline Values grid_values(const Shape& shape, double start) {
  Values values(std::size_t(numel_of(shape)));
  Draw draw(uint64_t(int64_t(start * 1000)) + values.size());
  for (double& value : values) value = start + 0.25 * double(draw.word() % 12);
  return values;
}

/// 0.5, 1, 1.5 and 2 with both signs.
inline Values divisors(const Shape& shape) {
  Values values(std::size_t(numel_of(shape)));
  Draw draw(17 + values.size());
  for (double& value : values) {
    const double half = draw.word() % 2 == 0 ? 0.5 : -0.5;
    value = half * double(1 + draw.word() % 4);
  }
  return values;
}

template <class F> Case binary_case(std::string name, F f, const Pairing& p) {
  Case test{.name = std::move(name),
            .inputs = {{.shape = p.a, .domain = domain_of<F>(), .avoid = kinks(f)},
                       {.shape = p.b, .domain = domain_of<F>()}},
            .call = [f](const Tensors& in) { return binary(f, in[0], in[1]); },
            .oracle =
                [f, p](const Arrays& in) {
                  return array_of(p.result, [&](const Dims& i) {
                    return truth(f, in[0].broadcast(i), in[1].broadcast(i));
                  });
                },
            .condition = 4};
  if (jumps<F>) test.inputs[0].given = grid_values(p.a, -1.4);
  if (jumps<F>) test.inputs[1].given = divisors(p.b);
  if (kinked<F>) test.inputs[0].given = grid_values(p.a, -1.5);
  if (kinked<F>) test.inputs[1].given = grid_values(p.b, -1.375);
  return test;
}

/// The error of broadcasting when `call` gets [2, 3] and [2, 4].
inline ErrorCase broadcast_error(std::string_view op, std::function<void()> call) {
  return error<ShapeError>(
      "[" + std::string(op) +
          "] shapes do not broadcast: [2, 3] and [2, 4] differ in dimension 1. "
          "Sizes must be equal, or one of them 1.",
      std::move(call));
}

/// Cases of single formulas beyond broadcasting: attributes, and functions with rules of their
/// own.
template <class F> void add_particulars(F, OpSamples&) {}
inline void add_particulars(formula::SmoothL1, OpSamples& samples) {
  samples.cases.push_back(binary_case("beta", formula::SmoothL1{0.5}, {{3, 5}, {3, 5}, {3, 5}}));
  samples.errors.push_back(REFUSES(UsageError,
                                   "[smooth_l1] beta is 0. It must be positive; use l1() for 0.",
                                   smooth_l1(ones({2}), ones({2}), 0)));
}
inline void add_particulars(formula::Huber, OpSamples& samples) {
  samples.cases.push_back(binary_case("delta", formula::Huber{0.5}, {{3, 5}, {3, 5}, {3, 5}}));
  samples.errors.push_back(REFUSES(UsageError, "[huber] delta is 0. It must be positive.",
                                   huber(ones({2}), ones({2}), 0)));
}
/// Slopes along the channels, dimension 1.
inline void add_particulars(formula::Prelu, OpSamples& samples) {
  for (const Shape& shape : {Shape{2, 3, 2, 2}, Shape{4, 3}}) {
    const Pairing p{shape, {3}, shape};
    Case test = binary_case("channels of " + pairing_name(p), formula::Prelu{}, p);
    test.call = [](const Tensors& in) { return prelu(in[0], in[1]); };
    test.oracle = [](const Arrays& in) {
      return array_of(in[0].shape, [&](const Dims& i) {
        return truth(formula::Prelu{}, in[0][i], in[1](i[1]));
      });
    };
    samples.cases.push_back(test);
  }
  samples.errors.push_back(
      REFUSES(ShapeError, "[prelu] the weight is [2] f32 for 3 channels. It must be [1] or [3].",
              prelu(ones({2, 3}), ones({2}))));
}

template <class F> Case integer_pairs_case() {
  return {
      .name = "integers",
      .inputs = {integers({2, 4}, {-7, 7, 0, -9, 9, 300, -70000, 5}), integers({4}, {2, -3, 5, 4})},
      .call = [](const Tensors& in) { return binary(F{}, in[0], in[1]); },
      .oracle =
          [](const Arrays& in) {
            return array_of(in[0].shape, [&](const Dims& i) {
              return truth(F{}, in[0][i], in[1].broadcast(i));
            });
          },
      .output = i64,
      .gradient = false};
}

template <class F> struct Samples<Binary<F>> {
  static OpSamples make() {
    std::vector<Case> cases;
    for (const Pairing& p : pairings()) cases.push_back(binary_case(pairing_name(p), F{}, p));
    cases.push_back(binary_case("longer than a block", F{}, {{3, 701}, {701}, {3, 701}}));
    if constexpr (takes_integers<F> && !std::same_as<F, formula::Pow>)  // which is not pow() of f64
      cases.push_back(integer_pairs_case<F>());
    const std::string name(F::info.name);
    OpSamples samples{
        .cases = cases,
        .errors = {broadcast_error(name,
                                   [] {
                                     binary(F{}, ones({2, 3}), ones({2, 4}));
                                   }),
                   REFUSES(UsageError, "[" + name + "] an input is undefined. Pass a tensor.",
                           binary(F{}, ones({2}), Tensor{})),
                   formula_dtype_error(name, takes_integers<F>,
                                       [](const Tensor& x) { binary(F{}, x, x); })},
        .any_dtype = takes_integers<F>};
    add_particulars(F{}, samples);
    return samples;
  }
};

template <class F> struct Samples<Compare<F>> {
  static constexpr bool logical =
      is_in_list<F, TypeList<formula::LogicalAnd, formula::LogicalOr, formula::LogicalXor>>;
  static Case with(std::string name, const Pairing& p, InputKind kind) {
    // Halves from few values: both outcomes, and equality, are frequent.
    const auto halves = [&](const Shape& shape, uint64_t seed) {
      Values values(std::size_t(numel_of(shape)));
      Draw draw(seed);
      for (double& value : values) value = double(draw.word() % 4) - 1;
      if (kind != InputKind::integers)
        for (double& value : values) value /= 2;
      return values;
    };
    return {.name = std::move(name),
            .inputs = {{.shape = p.a, .kind = kind, .given = halves(p.a, 1)},
                       {.shape = p.b, .kind = kind, .given = halves(p.b, 2)}},
            .call =
                [](const Tensors& in) {
                  if constexpr (logical) return detail::logical(F{}, in[0], in[1]);
                  else return compare(F{}, in[0], in[1]);
                },
            .oracle =
                [p](const Arrays& in) {
                  return array_of(p.result, [&](const Dims& i) {
                    return double(truth(F{}, in[0].broadcast(i), in[1].broadcast(i)));
                  });
                },
            .output = boolean,
            .gradient = false};
  }
  static OpSamples make() {
    std::vector<Case> cases;
    for (const Pairing& p : pairings())
      cases.push_back(with(pairing_name(p), p, InputKind::constant));
    cases.push_back(with("integers", {{3, 4}, {4}, {3, 4}}, InputKind::integers));
    return {.cases = cases,
            .errors = {broadcast_error(F::info.name,
                                       [] {
                                         compare(F{}, ones({2, 3}), ones({2, 4}));
                                       })},
            .any_dtype = true};
  }
};

template <> struct Samples<Where> {
  static Case with(std::string name, const Shape& c, const Shape& a, const Shape& b,
                   const Shape& result) {
    return {.name = std::move(name),
            .inputs = {condition(c), {.shape = a}, {.shape = b}},
            .call = [](const Tensors& in) { return where(in[0], in[1], in[2]); },
            .oracle =
                [result](const Arrays& in) {
                  return array_of(result, [&](const Dims& i) {
                    return in[0].broadcast(i) != 0 ? in[1].broadcast(i) : in[2].broadcast(i);
                  });
                }};
  }
  static OpSamples make() {
    return {.cases = {with("one shape", {3, 5}, {3, 5}, {3, 5}, {3, 5}),
                      with("scalars chosen", {3, 5}, {}, {}, {3, 5}),
                      with("a row of conditions", {5}, {3, 5}, {3, 1}, {3, 5}),
                      with("all three grow", {2, 1, 1}, {3, 1}, {4}, {2, 3, 4}),
                      with("empty", {0, 2}, {2}, {0, 2}, {0, 2})},
            .errors = {REFUSES(DTypeError,
                               "[where] the condition must be bool, got [2] f32. Compare first.",
                               where(ones({2}), ones({2}), ones({2}))),
                       broadcast_error("where",
                                       [] {
                                         where(ones({}, boolean), ones({2, 3}), ones({2, 4}));
                                       }),
                       REFUSES(UsageError, "[where] the condition is undefined. Pass a tensor.",
                               where({}, ones({2}), ones({2})))},
            .any_dtype = true};
  }
};

}  // namespace halftone::test
