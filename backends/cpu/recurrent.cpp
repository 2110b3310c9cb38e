// Recurrent cells in float, one row at a time; exponentials come from the SIMD kernels.
#include <halftone/backends/cpu/cpu_backend.h>
#include <halftone/backends/cpu/staging.h>
#include <halftone/backends/reference/cells.h>

namespace halftone {

namespace {
struct Fast {
  using Number = float;
  const simd::Kernels& k = simd_kernels();
  void load(const Tensor& x, int64_t offset, int64_t count, float* values) const {
    cpu::widen(x, offset, count, values);
  }
  void store(const float* values, int64_t count, const Tensor& y, int64_t offset) const {
    cpu::narrow(values, count, y, offset);
  }
  void sigmoid(float* x, int64_t n) const {
    k.unary(call_of<UnaryFormulas>(formula::Sigmoid{}), x, x, n);
  }
  void tanh(float* x, int64_t n) const {
    k.unary(call_of<UnaryFormulas>(formula::Tanh{}), x, x, n);
  }
};
}  // namespace

void CpuBackend::lstm_cell(const Tensor& x, const Tensor& recurrent, const Tensor& cell_before,
                           Tensor& gates, Tensor& cell, Tensor& y) {
  if (!cpu::is_f32_or_short(x))
    return ReferenceBackend::lstm_cell(x, recurrent, cell_before, gates, cell, y);
  reference::lstm_cell(Fast{}, x, recurrent, cell_before, gates, cell, y);
}
void CpuBackend::lstm_cell_backward(const Tensor& gates, const Tensor& cell_before,
                                    const Tensor& cell, const Tensor& dy, const Tensor& dstate,
                                    Tensor& dcell, Tensor& dgates) {
  if (!cpu::is_f32_or_short(gates))
    return ReferenceBackend::lstm_cell_backward(gates, cell_before, cell, dy, dstate, dcell,
                                                dgates);
  reference::lstm_cell_backward(Fast{}, gates, cell_before, cell, dy, dstate, dcell, dgates);
}
void CpuBackend::gru_cell(const Tensor& x, const Tensor& recurrent, const Tensor& state,
                          Tensor& gates, Tensor& y) {
  if (!cpu::is_f32_or_short(x)) return ReferenceBackend::gru_cell(x, recurrent, state, gates, y);
  reference::gru_cell(Fast{}, x, recurrent, state, gates, y);
}
void CpuBackend::gru_cell_backward(const Tensor& gates, const Tensor& state, const Tensor& dy,
                                   Tensor& dstate, Tensor& dx, Tensor& drecurrent) {
  if (!cpu::is_f32_or_short(gates))
    return ReferenceBackend::gru_cell_backward(gates, state, dy, dstate, dx, drecurrent);
  reference::gru_cell_backward(Fast{}, gates, state, dy, dstate, dx, drecurrent);
}

}  // namespace halftone
