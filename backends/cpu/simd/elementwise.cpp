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

}  // namespace halftone::simd::HALFTONE_ISA
