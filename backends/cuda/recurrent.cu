// One step of an LSTM and of a GRU, one thread per number of the state, like the reference's
// cells.h:
//   LSTM: i, f, o = sigmoid, g = tanh;  c' = f c + i g;  y = o tanh(c')
//   GRU:  r, z = sigmoid(x + u);  m = tanh(x + r u);  y = (1 - z) m + z h
#include <halftone/backends/cuda/conversion.h>
#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/launch.h>
#include <halftone/backends/cuda/values.h>
#include <halftone/core/formulas.h>

namespace halftone {

namespace cuda {
namespace {

template <class C> __device__ C sigmoid(C x) { return formula::Sigmoid::of(x); }

template <class T, class C>
__global__ void lstm_kernel(int64_t n, int64_t h, const T* x, const C* recurrent,
                            const C* cell_before, T* gates, C* cell, T* y) {
  for (int64_t k = global_thread(); k < n * h; k += all_threads()) {
    const int64_t first = k / h * 4 * h + k % h;
    const auto sum = [&](int gate) {
      return C(widen(x[first + gate * h])) + recurrent[first + gate * h];
    };
    const C i = sigmoid(sum(0)), f = sigmoid(sum(1)), g = math::tanh(sum(2)), o = sigmoid(sum(3));
    const C c = f * cell_before[k] + i * g;
    gates[first] = narrow<T>(i), gates[first + h] = narrow<T>(f);
    gates[first + 2 * h] = narrow<T>(g), gates[first + 3 * h] = narrow<T>(o);
    cell[k] = c, y[k] = narrow<T>(o * math::tanh(c));
  }
}

template <class T, class C>
__global__ void lstm_backward_kernel(int64_t n, int64_t h, const T* gates, const C* cell_before,
                                     const C* cell, const T* dy, const C* dstate, C* dcell,
                                     T* dgates) {
  for (int64_t k = global_thread(); k < n * h; k += all_threads()) {
    const int64_t first = k / h * 4 * h + k % h;
    const C i = widen(gates[first]), f = widen(gates[first + h]), g = widen(gates[first + 2 * h]),
            o = widen(gates[first + 3 * h]);
    const C bounded = math::tanh(cell[k]), out = widen(dy[k]) + dstate[k];
    const C inner = dcell[k] + out * o * (1 - bounded * bounded);
    dgates[first] = narrow<T>(inner * g * i * (1 - i));
    dgates[first + h] = narrow<T>(inner * cell_before[k] * f * (1 - f));
    dgates[first + 2 * h] = narrow<T>(inner * i * (1 - g * g));
    dgates[first + 3 * h] = narrow<T>(out * bounded * o * (1 - o));
    dcell[k] = inner * f;
  }
}

/// The fourth gate is the state's part of `new` before the reset.
template <class T, class C>
__global__ void gru_kernel(int64_t n, int64_t h, const T* x, const C* recurrent, const T* state,
                           T* gates, T* y) {
  for (int64_t k = global_thread(); k < n * h; k += all_threads()) {
    const int64_t row = k / h, j = k % h, from = row * 3 * h + j, to = row * 4 * h + j;
    const C r = sigmoid(C(widen(x[from])) + recurrent[from]);
    const C z = sigmoid(C(widen(x[from + h])) + recurrent[from + h]);
    const C share = recurrent[from + 2 * h];
    const C m = math::tanh(C(widen(x[from + 2 * h])) + r * share);
    gates[to] = narrow<T>(r), gates[to + h] = narrow<T>(z);
    gates[to + 2 * h] = narrow<T>(m), gates[to + 3 * h] = narrow<T>(share);
    y[k] = narrow<T>((1 - z) * m + z * widen(state[k]));
  }
}

template <class T, class C>
__global__ void gru_backward_kernel(int64_t n, int64_t h, const T* gates, const T* state,
                                    const T* dy, C* dstate, T* dx, T* drecurrent) {
  for (int64_t k = global_thread(); k < n * h; k += all_threads()) {
    const int64_t row = k / h, j = k % h, from = row * 4 * h + j, to = row * 3 * h + j;
    const C r = widen(gates[from]), z = widen(gates[from + h]), m = widen(gates[from + 2 * h]),
            share = widen(gates[from + 3 * h]);
    const C out = widen(dy[k]) + dstate[k], dm = out * (1 - z) * (1 - m * m);
    const T dr = narrow<T>(dm * share * r * (1 - r));
    const T dz = narrow<T>(out * (widen(state[k]) - m) * z * (1 - z));
    dx[to] = dr, dx[to + h] = dz, dx[to + 2 * h] = narrow<T>(dm);
    drecurrent[to] = dr, drecurrent[to + h] = dz, drecurrent[to + 2 * h] = narrow<T>(dm * r);
    dstate[k] = out * z;
  }
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void CudaBackend::lstm_cell(const Tensor& x, const Tensor& recurrent_in, const Tensor& cell_before,
                            Tensor& gates, Tensor& cell, Tensor& y) {
  if (y.numel() == 0) return;
  const Tensor recurrent = converted(*this, recurrent_in, cell.dtype());
  visit_floating(x.dtype(), "lstm", [&]<class T>() {
    using C = compute_t<T>;
    launch(context_, lstm_kernel<T, C>, shape_for(context_, y.numel()), y.size(0), y.size(1),
           x.data<T>(), recurrent.data<C>(), cell_before.data<C>(), gates.data<T>(), cell.data<C>(),
           y.data<T>());
  });
}

void CudaBackend::lstm_cell_backward(const Tensor& gates, const Tensor& cell_before,
                                     const Tensor& cell, const Tensor& dy, const Tensor& dstate,
                                     Tensor& dcell, Tensor& dgates) {
  if (dy.numel() == 0) return;
  visit_floating(gates.dtype(), "lstm", [&]<class T>() {
    using C = compute_t<T>;
    launch(context_, lstm_backward_kernel<T, C>, shape_for(context_, dy.numel()), dy.size(0),
           dy.size(1), gates.data<T>(), cell_before.data<C>(), cell.data<C>(), dy.data<T>(),
           dstate.data<C>(), dcell.data<C>(), dgates.data<T>());
  });
}

void CudaBackend::gru_cell(const Tensor& x, const Tensor& recurrent_in, const Tensor& state,
                           Tensor& gates, Tensor& y) {
  if (y.numel() == 0) return;
  const Tensor recurrent = converted(*this, recurrent_in, statistics_of(x));
  visit_floating(x.dtype(), "gru", [&]<class T>() {
    using C = compute_t<T>;
    launch(context_, gru_kernel<T, C>, shape_for(context_, y.numel()), y.size(0), y.size(1),
           x.data<T>(), recurrent.data<C>(), state.data<T>(), gates.data<T>(), y.data<T>());
  });
}

void CudaBackend::gru_cell_backward(const Tensor& gates, const Tensor& state, const Tensor& dy,
                                    Tensor& dstate, Tensor& dx, Tensor& drecurrent) {
  if (dy.numel() == 0) return;
  visit_floating(gates.dtype(), "gru", [&]<class T>() {
    using C = compute_t<T>;
    launch(context_, gru_backward_kernel<T, C>, shape_for(context_, dy.numel()), dy.size(0),
           dy.size(1), gates.data<T>(), state.data<T>(), dy.data<T>(), dstate.data<C>(),
           dx.data<T>(), drecurrent.data<T>());
  });
}

}  // namespace halftone
