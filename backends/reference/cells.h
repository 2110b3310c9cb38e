// One step of an LSTM (Hochreiter & Schmidhuber 1997, with forget gates) and of a GRU (Cho et al.
// 2014, in the form of PyTorch and cuDNN, which apply the reset gate after the matrix product). The
// loops are written once: `Io` gives the type they compute in, and loads and stores rows.
//
//   LSTM: i, f, o = sigmoid, g = tanh;  c' = f c + i g;  y = o tanh(c')
//   GRU:  r, z = sigmoid(x + u);  m = tanh(x + r u);  y = (1 - z) m + z h
#pragma once

#include <algorithm>

#include <halftone/backends/reference/loops.h>

namespace halftone::reference {

/// Calls body(row, scratch) for n rows in parallel; scratch holds `width` numbers.
template <class T, class Body> void each_cell(int64_t n, int64_t width, const Body& body) {
  parallel_pieces(n, std::max<int64_t>(1, 4096 / width), [&](int64_t begin, int64_t end) {
    Workspace<T> scratch(width);
    for (int64_t row = begin; row < end; ++row) body(row, scratch.data());
  });
}

/// Loads row `row` of a contiguous [.., width] tensor into a buffer.
template <class Io, class T>
T* row_of(const Io& io, const Tensor& x, int64_t row, int64_t width, T* buffer) {
  io.load(x, row * width, width, buffer);
  return buffer;
}

template <class Io>
void lstm_cell(const Io& io, const Tensor& x, const Tensor& recurrent, const Tensor& cell_before,
               const Tensor& gates, const Tensor& cell, const Tensor& y) {
  using T = typename Io::Number;
  const int64_t h = y.size(1);
  each_cell<T>(y.size(0), 10 * h, [&](int64_t row, T* scratch) {
    T *const sums = row_of(io, x, row, 4 * h, scratch), *const c = scratch + 8 * h,
             *const out = c + h;
    const T* added = row_of(io, recurrent, row, 4 * h, scratch + 4 * h);
    for (int64_t j = 0; j < 4 * h; ++j) sums[j] += added[j];
    const T *const i = sums, *const f = i + h, *const g = f + h, *const o = g + h;
    io.sigmoid(sums, 2 * h), io.tanh(sums + 2 * h, h), io.sigmoid(sums + 3 * h, h);
    row_of(io, cell_before, row, h, c);
    for (int64_t j = 0; j < h; ++j) out[j] = c[j] = f[j] * c[j] + i[j] * g[j];
    io.tanh(out, h);
    for (int64_t j = 0; j < h; ++j) out[j] *= o[j];
    io.store(sums, 4 * h, gates, row * 4 * h);
    io.store(c, h, cell, row * h), io.store(out, h, y, row * h);
  });
}

template <class Io>
void lstm_cell_backward(const Io& io, const Tensor& gates, const Tensor& cell_before,
                        const Tensor& cell, const Tensor& dy, const Tensor& dstate,
                        const Tensor& dcell, const Tensor& dgates) {
  using T = typename Io::Number;
  const int64_t h = dy.size(1);
  each_cell<T>(dy.size(0), 13 * h, [&](int64_t row, T* scratch) {
    const T* const i = row_of(io, gates, row, 4 * h, scratch);
    const T *const f = i + h, *const g = f + h, *const o = g + h;
    T *const d = scratch + 4 * h, *const rest = scratch + 8 * h;
    const T* const c = row_of(io, cell_before, row, h, rest);
    T* const bounded = row_of(io, cell, row, h, rest + h);
    io.tanh(bounded, h);
    const T* const dh = row_of(io, dy, row, h, rest + 2 * h);
    const T* const later = row_of(io, dstate, row, h, rest + 3 * h);
    T* const dc = row_of(io, dcell, row, h, rest + 4 * h);
    for (int64_t j = 0; j < h; ++j) {
      const T out = dh[j] + later[j];
      const T inner = dc[j] + out * o[j] * (1 - bounded[j] * bounded[j]);
      d[j] = inner * g[j] * i[j] * (1 - i[j]);
      d[h + j] = inner * c[j] * f[j] * (1 - f[j]);
      d[2 * h + j] = inner * i[j] * (1 - g[j] * g[j]);
      d[3 * h + j] = out * bounded[j] * o[j] * (1 - o[j]);
      dc[j] = inner * f[j];
    }
    io.store(d, 4 * h, dgates, row * 4 * h), io.store(dc, h, dcell, row * h);
  });
}

template <class Io>
void gru_cell(const Io& io, const Tensor& x, const Tensor& recurrent, const Tensor& state,
              const Tensor& gates, const Tensor& y) {
  using T = typename Io::Number;
  const int64_t h = y.size(1);
  each_cell<T>(y.size(0), 9 * h, [&](int64_t row, T* scratch) {
    T* const sums = row_of(io, x, row, 3 * h, scratch);
    const T *const r = sums, *const z = r + h;
    T *const m = sums + 2 * h, *const share = sums + 3 * h, *const out = scratch + 8 * h;
    const T* added = row_of(io, recurrent, row, 3 * h, scratch + 4 * h);
    for (int64_t j = 0; j < 2 * h; ++j) sums[j] += added[j];
    io.sigmoid(sums, 2 * h);
    for (int64_t j = 0; j < h; ++j) share[j] = added[2 * h + j], m[j] += r[j] * share[j];
    io.tanh(m, h);
    row_of(io, state, row, h, out);
    for (int64_t j = 0; j < h; ++j) out[j] = (1 - z[j]) * m[j] + z[j] * out[j];
    io.store(sums, 4 * h, gates, row * 4 * h), io.store(out, h, y, row * h);
  });
}

template <class Io>
void gru_cell_backward(const Io& io, const Tensor& gates, const Tensor& state, const Tensor& dy,
                       const Tensor& dstate, const Tensor& dx, const Tensor& drecurrent) {
  using T = typename Io::Number;
  const int64_t h = dy.size(1);
  each_cell<T>(dy.size(0), 10 * h, [&](int64_t row, T* scratch) {
    const T* const r = row_of(io, gates, row, 4 * h, scratch);
    const T *const z = r + h, *const m = z + h, *const share = m + h;
    T *const d = scratch + 4 * h, *const rest = scratch + 7 * h;
    const T* const before = row_of(io, state, row, h, rest);
    const T* const dh = row_of(io, dy, row, h, rest + h);
    T* const later = row_of(io, dstate, row, h, rest + 2 * h);
    for (int64_t j = 0; j < h; ++j) {
      const T out = dh[j] + later[j];
      const T dm = out * (1 - z[j]) * (1 - m[j] * m[j]);
      d[j] = dm * share[j] * r[j] * (1 - r[j]);
      d[h + j] = out * (before[j] - m[j]) * z[j] * (1 - z[j]);
      d[2 * h + j] = dm;
      later[j] = out * z[j];
    }
    io.store(d, 3 * h, dx, row * 3 * h), io.store(later, h, dstate, row * h);
    for (int64_t j = 0; j < h; ++j) d[2 * h + j] *= r[j];
    io.store(d, 3 * h, drecurrent, row * 3 * h);
  });
}

}  // namespace halftone::reference
