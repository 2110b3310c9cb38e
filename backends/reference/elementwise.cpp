// The formulas of core/formulas.h over strided tensors, in double with one rounding, for integers
// in 64 bits. map() walks and converts; each formula is compiled once per list entry.
#include <halftone/backends/reference/reference.h>

#include <halftone/backends/reference/map.h>

namespace halftone {

using namespace reference;

void ReferenceBackend::unary(FormulaCall call, const Tensor& x, Tensor& y) {
  visit_index(UnaryFormulas{}, call.index, [&]<class F>() {
    const F f = formula_of<F>(call);
    if constexpr (takes_integers<F>)
      if (!is_floating(y.dtype()))
        return map<int64_t>([&](int64_t value) { return f.integer(value); }, y, x);
    map<double>([&](double value) { return f.forward(value); }, y, x);
  });
}

void ReferenceBackend::unary_backward(FormulaCall call, const Tensor& saved, const Tensor& dy,
                                      Tensor& dx) {
  visit_index(UnaryFormulas{}, call.index, [&]<class F>() {
    const F f = formula_of<F>(call);
    // The formula reads only the one of x and y that it asked to save.
    map<double>([&](double x_or_y, double d) { return gradient_of(f, d, x_or_y); }, dx, saved, dy);
  });
}

void ReferenceBackend::binary(FormulaCall call, const Tensor& a, const Tensor& b, Tensor& y) {
  visit_index(BinaryFormulas{}, call.index, [&]<class F>() {
    const F f = formula_of<F>(call);
    if constexpr (takes_integers<F>)
      if (!is_floating(y.dtype()))
        return map<int64_t>([&](int64_t u, int64_t v) { return f.integer(u, v); }, y, a, b);
    map<double>([&](double u, double v) { return f.forward(u, v); }, y, a, b);
  });
}

void ReferenceBackend::binary_backward(FormulaCall call, int input, const Tensor& a,
                                       const Tensor& b, const Tensor& dy, Tensor& dx) {
  visit_index(BinaryFormulas{}, call.index, [&]<class F>() {
    const F f = formula_of<F>(call);
    if (input == 0)
      map<double>([&](double u, double v, double d) { return gradient_of<0>(f, d, u, v); }, dx, a,
                  b, dy);
    else
      map<double>([&](double u, double v, double d) { return gradient_of<1>(f, d, u, v); }, dx, a,
                  b, dy);
  });
}

void ReferenceBackend::compare(FormulaCall call, const Tensor& a, const Tensor& b, Tensor& y) {
  visit_index(CompareFormulas{}, call.index, [&]<class F>() {
    const F f = formula_of<F>(call);
    // 64-bit integers do not fit in a double.
    if (is_floating(a.dtype()) || is_floating(b.dtype()))
      map<double>([&](double u, double v) { return f.forward(u, v); }, y, a, b);
    else map<int64_t>([&](int64_t u, int64_t v) { return f.forward(u, v); }, y, a, b);
  });
}

}  // namespace halftone
