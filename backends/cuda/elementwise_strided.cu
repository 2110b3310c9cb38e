// Elementwise formulas for tensors that broadcast, have strides or differ in dtype, and for
// integers: one kernel per arity, which looks up the formula and the dtypes. All threads take the
// same branches.
#include <halftone/backends/cuda/elementwise.h>

namespace halftone::cuda {

namespace {

template <class C>
__global__ void unary_kernel(FormulaCall call, Layout<2> layout, bool small, Operand y, Operand x) {
  for (int64_t turn = global_thread(); turn < layout.turns; turn += all_threads()) {
    const Places<2> at = layout.at_turn(turn, small);
    const C in = load_as<C>(x, at.of[1]);
    C out{};
    visit_index(UnaryFormulas{}, call.index, [&]<class F>() {
      if constexpr (std::is_floating_point_v<C>) out = formula_of<F>(call).forward(in);
      else if constexpr (takes_integers<F>) out = formula_of<F>(call).integer(in);
    });
    store_as<C>(y, at.of[0], out);
  }
}

template <class C>
__global__ void unary_backward_kernel(FormulaCall call, Layout<3> layout, bool small, Operand dx,
                                      Operand saved, Operand dy) {
  for (int64_t turn = global_thread(); turn < layout.turns; turn += all_threads()) {
    const Places<3> at = layout.at_turn(turn, small);
    const C s = saved.data ? load_as<C>(saved, at.of[1]) : C(0);
    C out = load_as<C>(dy, at.of[2]);
    visit_index(UnaryFormulas{}, call.index,
                [&]<class F>() { out = gradient_of(formula_of<F>(call), out, s); });
    store_as<C>(dx, at.of[0], out);
  }
}

template <class C>
__global__ void binary_kernel(FormulaCall call, Layout<3> layout, bool small, Operand y, Operand a,
                              Operand b) {
  for (int64_t turn = global_thread(); turn < layout.turns; turn += all_threads()) {
    const Places<3> at = layout.at_turn(turn, small);
    const C u = load_as<C>(a, at.of[1]), v = load_as<C>(b, at.of[2]);
    C out{};
    visit_index(BinaryFormulas{}, call.index, [&]<class F>() {
      if constexpr (std::is_floating_point_v<C>) out = formula_of<F>(call).forward(u, v);
      else if constexpr (takes_integers<F>) out = formula_of<F>(call).integer(u, v);
    });
    store_as<C>(y, at.of[0], out);
  }
}

template <class C>
__global__ void binary_backward_kernel(FormulaCall call, int input, Layout<4> layout, bool small,
                                       Operand dx, Operand a, Operand b, Operand dy) {
  for (int64_t turn = global_thread(); turn < layout.turns; turn += all_threads()) {
    const Places<4> at = layout.at_turn(turn, small);
    const C u = a.data ? load_as<C>(a, at.of[1]) : C(0),
            v = b.data ? load_as<C>(b, at.of[2]) : C(0);
    C out = load_as<C>(dy, at.of[3]);
    visit_index(BinaryFormulas{}, call.index, [&]<class F>() {
      const F f = formula_of<F>(call);
      out = input == 0 ? gradient_of<0>(f, out, u, v) : gradient_of<1>(f, out, u, v);
    });
    store_as<C>(dx, at.of[0], out);
  }
}

/// Returns the kernel that computes in float, in double if any tensor is f64, or in integers if all
/// are integers.
template <class Kernel, class... T>
Kernel* chosen(Kernel* of_float, Kernel* of_double, Kernel* of_integers, const Tensor& y,
               const T&... inputs) {
  if (!is_floating(y.dtype())) return of_integers;
  return ((inputs.dtype() == f64) || ...) || y.dtype() == f64 ? of_double : of_float;
}
/// Returns whether any tensor is f64.
template <class... T> bool any_double(const T&... tensors) {
  return ((tensors.defined() && tensors.dtype() == f64) || ...);
}

}  // namespace

void unary_strided(const Context& context, FormulaCall call, const Tensor& x, Tensor& y) {
  const Layout<2> layout(y, x);
  if (layout.turns == 0) return;
  launch(context, chosen(unary_kernel<float>, unary_kernel<double>, unary_kernel<int64_t>, y, x),
         shape_for(context, layout.turns), call, layout, layout.is_small(), Operand(y), Operand(x));
}

void unary_backward_strided(const Context& context, FormulaCall call, const Tensor& saved,
                            const Tensor& dy, Tensor& dx) {
  const Layout<3> layout(dx, saved, dy);
  if (layout.turns == 0) return;
  launch(context,
         any_double(saved, dy, dx) ? unary_backward_kernel<double> : unary_backward_kernel<float>,
         shape_for(context, layout.turns), call, layout, layout.is_small(), Operand(dx),
         Operand(saved), Operand(dy));
}

void binary_strided(const Context& context, FormulaCall call, const Tensor& a, const Tensor& b,
                    Tensor& y) {
  const Layout<3> layout(y, a, b);
  if (layout.turns == 0) return;
  launch(context,
         chosen(binary_kernel<float>, binary_kernel<double>, binary_kernel<int64_t>, y, a, b),
         shape_for(context, layout.turns), call, layout, layout.is_small(), Operand(y), Operand(a),
         Operand(b));
}

void binary_backward_strided(const Context& context, FormulaCall call, int input, const Tensor& a,
                             const Tensor& b, const Tensor& dy, Tensor& dx) {
  const Layout<4> layout(dx, a, b, dy);
  if (layout.turns == 0) return;
  launch(context,
         any_double(a, b, dy, dx) ? binary_backward_kernel<double> : binary_backward_kernel<float>,
         shape_for(context, layout.turns), call, input, layout, layout.is_small(), Operand(dx),
         Operand(a), Operand(b), Operand(dy));
}

}  // namespace halftone::cuda
