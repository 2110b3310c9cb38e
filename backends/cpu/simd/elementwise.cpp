// One loop per arity over the formula lists. The compiler inlines the formulas and vectorizes the
// loop.
#include <halftone/backends/cpu/simd/local.h>

namespace halftone::simd::HALFTONE_ISA {

static void unary(FormulaCall call, const float* x, float* y, int64_t n) {
  visit_index(UnaryFormulas{}, call.index, [&]<class F>() {
    const F f = formula_of<F>(call);
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) y[i] = f.forward(x[i]);
  });
}

static void unary_backward(FormulaCall call, const float* saved, const float* dy, float* dx,
                           int64_t n) {
  visit_index(UnaryFormulas{}, call.index, [&]<class F>() {
    const F f = formula_of<F>(call);
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) dx[i] = gradient_of(f, dy[i], saved[i]);
  });
}

static void binary(FormulaCall call, const float* a, const float* b, float* y, int64_t n) {
  visit_index(BinaryFormulas{}, call.index, [&]<class F>() {
    const F f = formula_of<F>(call);
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) y[i] = f.forward(a[i], b[i]);
  });
}

static void binary_backward(FormulaCall call, int input, const float* a, const float* b,
                            const float* dy, float* dx, int64_t n) {
  visit_index(BinaryFormulas{}, call.index, [&]<class F>() {
    const F f = formula_of<F>(call);
    if (input == 0) {
#pragma GCC ivdep
      for (int64_t i = 0; i < n; ++i) dx[i] = gradient_of<0>(f, dy[i], a[i], b[i]);
    } else {
#pragma GCC ivdep
      for (int64_t i = 0; i < n; ++i) dx[i] = gradient_of<1>(f, dy[i], a[i], b[i]);
    }
  });
}

static void compare(FormulaCall call, const float* a, const float* b, bool* y, int64_t n) {
  visit_index(CompareFormulas{}, call.index, [&]<class F>() {
    const F f = formula_of<F>(call);
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) y[i] = f.forward(a[i], b[i]);
  });
}

/// Uses no branches, which would be mispredicted.
template <class T>
static void select(const bool* condition, const T* a, const T* b, T* y, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const T mask = T(0) - T(condition[i]);
    y[i] = T((a[i] & mask) | (b[i] & T(~mask)));
  }
}

static void accumulate(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] += x[i];
}
static void subtract(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] -= x[i];
}
static void scale(float factor, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] *= factor;
}
static void lerp(const float* x, float weight, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] += weight * (x[i] - y[i]);
}

void fill_elementwise(Kernels& table) {
  table.compare = compare, table.select_words = select<uint32_t>;
  table.select_halves = select<uint16_t>;
  table.unary = unary, table.unary_backward = unary_backward;
  table.binary = binary, table.binary_backward = binary_backward;
  table.accumulate = accumulate, table.subtract = subtract, table.scale = scale, table.lerp = lerp;
}

// Optimizer updates, in one pass over everything that they read and write; weight forms; the check
// of scaled gradients.

/// One loop per rule and mask of states; states outside of the mask are never touched.
template <class Rule, StateMask mask>
static void update_as(const UpdateNumbers& u, const float* gradient, float* weight,
                      float* const* states, int64_t n) {
  using Has = StaticStates<mask>;
  typename Rule::template Numbers<float> numbers;
  __builtin_memcpy(&numbers, u.numbers, sizeof numbers);
  float *const s0 = states[0], *const s1 = states[1], *const s2 = states[2];
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    float state[3] = {Has::has(0) ? s0[i] : 0, Has::has(1) ? s1[i] : 0, Has::has(2) ? s2[i] : 0};
    float w = weight[i];
    Rule::apply(numbers, Has{}, gradient[i], w, state);
    weight[i] = w;
    if (Has::has(0)) s0[i] = state[0];
    if (Has::has(1)) s1[i] = state[1];
    if (Has::has(2)) s2[i] = state[2];
  }
}

template <class Rule, StateMask... masks>
static void update_rule(StateMasks<masks...> /*kinds*/, const UpdateNumbers& u,
                        const float* gradient, float* weight, float* const* states, int64_t n) {
  ((u.states == masks ? update_as<Rule, masks>(u, gradient, weight, states, n) : void()), ...);
}

static void update(const UpdateNumbers& u, const float* gradient, float* weight,
                   float* const* states, int64_t n) {
  visit_index(UpdateRules{}, u.rule, [&]<class Rule>() {
    update_rule<Rule>(typename Rule::Kinds{}, u, gradient, weight, states, n);
  });
}

/// Calls visitor.operator()<Form>() for the form if it stores an i16 (`halves`), or if it does not.
template <bool halves, class Visitor> static void visit_form(WeightForm form, Visitor visitor) {
  visit_index(WeightForms{}, int(form), [&]<class Form>() {
    if constexpr ((Form::companion_dtype(bf16) == i16) == halves)
      visitor.template operator()<Form>();
  });
}

static void decode(WeightForm form, const float* parameter, const float* companion, float* weight,
                   int64_t n) {
  visit_form<false>(form, [&]<class Form>() {
    constexpr bool both = !Form::companion.empty();
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i)
      weight[i] = Form::decode(parameter[i], both ? companion[i] : 0.0f);
  });
}

static void encode(WeightForm form, const float* weight, const uint16_t* random, float* parameter,
                   float* companion, int64_t n) {
  visit_form<false>(form, [&]<class Form>() {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
      const auto kept = Form::encode(weight[i], Form::uses_rounded ? parameter[i] : weight[i],
                                     Form::uses_random ? random[i] : uint16_t(0));
      parameter[i] = kept.parameter;
      if constexpr (!Form::companion.empty()) companion[i] = kept.companion;
    }
  });
}

static void decode_halves(WeightForm form, const uint16_t* parameter, const int16_t* companion,
                          float* weight, int64_t n) {
  visit_form<true>(form, [&]<class Form>() {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i)
      weight[i] = Form::decode(__builtin_bit_cast(float, uint32_t(parameter[i]) << 16),
                               float(companion[i]));
  });
}

static void encode_halves(WeightForm form, const float* weight, uint16_t* parameter,
                          int16_t* companion, int64_t n) {
  visit_form<true>(form, [&]<class Form>() {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
      const auto kept = Form::encode(weight[i], weight[i], uint16_t(0));
      parameter[i] = uint16_t(__builtin_bit_cast(uint32_t, kept.parameter) >> 16);
      companion[i] = int16_t(int32_t(kept.companion));
    }
  });
}

static bool unscale(const float* x, float factor, float* y, int64_t n) {
  constexpr uint32_t exponent = 0x7f800000u;  // all ones: infinite or NaN
  uint32_t found = 0;
  if (!y) {
    for (int64_t i = 0; i < n; ++i)
      found |= (__builtin_bit_cast(uint32_t, x[i]) & exponent) == exponent;
    return found == 0;
  }
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    found |= (__builtin_bit_cast(uint32_t, x[i]) & exponent) == exponent;
    y[i] = x[i] * factor;
  }
  return found == 0;
}

void fill_training(Kernels& table) {
  table.update = update, table.decode = decode, table.encode = encode;
  table.decode_halves = decode_halves, table.encode_halves = encode_halves;
  table.unscale = unscale;
}

}  // namespace halftone::simd::HALFTONE_ISA

// The tables of this instruction set. The portable one shares the kernels that neither add floats
// in an order of their own nor contain a product that could be fused.

#ifdef HALFTONE_PORTABLE
namespace halftone::simd::HALFTONE_FAST_ISA {
void fill_short_formats(Kernels& table);
void fill_images(Kernels& table);
void fill_random(Kernels& table);
void fill_quantize(Kernels& table);
}  // namespace halftone::simd::HALFTONE_FAST_ISA
#endif

namespace halftone::simd::HALFTONE_ISA {

#ifdef HALFTONE_PORTABLE
using namespace HALFTONE_FAST_ISA;
#endif

static Kernels make_table() {
  Kernels table{};
  table.name = HALFTONE_ISA_NAME;
  fill_elementwise(table);
  fill_reductions(table);
  fill_rows(table);
  fill_channels(table);
  fill_training(table);
  fill_gemm(table);
  fill_short_formats(table);
  fill_images(table);
  fill_random(table);
  fill_quantize(table);
  return table;
}

const Kernels& kernels() {
  static const Kernels table = make_table();
  return table;
}

}  // namespace halftone::simd::HALFTONE_ISA
