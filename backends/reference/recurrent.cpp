// Recurrent cells in double.
#include <algorithm>

#include <halftone/backends/reference/reference.h>

#include <halftone/backends/reference/cells.h>

namespace halftone {

namespace {
struct Exact {
  using Number = double;
  void load(const Tensor& x, int64_t offset, int64_t count, double* values) const {
    reference::load(x, offset, count, values);
  }
  void store(const double* values, int64_t count, const Tensor& y, int64_t offset) const {
    reference::store(values, count, y, offset);
  }
  void sigmoid(double* x, int64_t n) const {
    std::transform(x, x + n, x, [](double v) { return formula::Sigmoid::of(v); });
  }
  void tanh(double* x, int64_t n) const {
    std::transform(x, x + n, x, [](double v) { return math::tanh(v); });
  }
};
}  // namespace

void ReferenceBackend::lstm_cell(const Tensor& x, const Tensor& recurrent,
                                 const Tensor& cell_before, Tensor& gates, Tensor& cell,
                                 Tensor& y) {
  reference::lstm_cell(Exact{}, x, recurrent, cell_before, gates, cell, y);
}
void ReferenceBackend::lstm_cell_backward(const Tensor& gates, const Tensor& cell_before,
                                          const Tensor& cell, const Tensor& dy,
                                          const Tensor& dstate, Tensor& dcell, Tensor& dgates) {
  reference::lstm_cell_backward(Exact{}, gates, cell_before, cell, dy, dstate, dcell, dgates);
}
void ReferenceBackend::gru_cell(const Tensor& x, const Tensor& recurrent, const Tensor& state,
                                Tensor& gates, Tensor& y) {
  reference::gru_cell(Exact{}, x, recurrent, state, gates, y);
}
void ReferenceBackend::gru_cell_backward(const Tensor& gates, const Tensor& state, const Tensor& dy,
                                         Tensor& dstate, Tensor& dx, Tensor& drecurrent) {
  reference::gru_cell_backward(Exact{}, gates, state, dy, dstate, dx, drecurrent);
}

}  // namespace halftone
