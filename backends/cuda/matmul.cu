// Matrix products: cuBLASLt if it supports the call, otherwise the tiles of tiles.h. cuBLASLt
// gets large short matrices with aligned rows: others are copied first.
#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/for_cudnn.h>
#include <halftone/backends/cuda/launch.h>
#include <halftone/backends/cuda/libraries.h>
#include <halftone/backends/cuda/tiles.h>
#include <halftone/backends/cuda/values.h>
#include <halftone/core/formats/number_format.h>
#include <halftone/core/formats/sums.h>
#include <halftone/core/formulas.h>
#include <halftone/core/pending.h>
#include <halftone/core/tensor.h>

namespace halftone {

namespace cuda {
namespace {

/// Stores c[batch][i][j] = sum + bias[j]; the dtypes of c and bias are looked up.
template <class C> struct StoreMatrix {
  Operand c, bias;
  int64_t rows, columns;
  __device__ void operator()(int64_t batch, int64_t i, int64_t j, C sum) const {
    if (bias.data) sum += load_floating<C>(bias, j);
    store_floating(c, (batch * rows + i) * columns + j, sum);
  }
};

/// Returns lines along one of the last two dimensions, and levels along the other.
template <class T> MatrixFactor<T> factor_of(const Tensor& x, int line_dim, int level_dim) {
  const int r = x.rank();
  return {x.data<T>(), r == 3 && x.shape()[0] > 1 ? x.strides()[0] : 0, x.strides()[r + line_dim],
          x.strides()[r + level_dim]};
}

/// Rows are aligned to 16 bytes if their length is a multiple of this.
int64_t aligned_length(DType dtype) { return 16 / int64_t(size_of(dtype)); }

bool is_transposed(const Tensor& x) { return x.strides()[1] != 1 && x.strides()[0] == 1; }

/// Returns whether to copy the matrices of a product into aligned ones. Without aligned rows,
/// cuBLASLt 13.1 on an H100 multiplies an f32 result of short factors without tensor cores. The
/// copies take longer than a small product.
bool is_worth_padding(const Tensor& a, const Tensor& b, const Tensor& c) {
  const auto length = [](const Tensor& x) { return x.size(is_transposed(x) ? 0 : 1); };
  if (c.rank() != 2 || size_of(a.dtype()) != 2 || !cublaslt::is_usable()) return false;
  const int64_t least = aligned_length(a.dtype());
  const bool aligned = length(a) % least == 0 && length(b) % least == 0 && c.size(1) % least == 0;
  return !aligned && c.size(0) * c.size(1) * a.size(1) >= int64_t(1) << 26;
}

Tensor part_of(const Tensor& whole, const Shape& shape) {
  return views::slice(views::slice(whole, 0, 0, shape[0]), 1, 0, shape[1]);
}
Shape padded_shape(const Shape& shape, DType dtype) {
  const auto up = [least = aligned_length(dtype)](int64_t n) {
    return (n + least - 1) / least * least;
  };
  return {up(shape[0]), up(shape[1])};
}
/// Returns a row-major copy of a matrix with zeros to the right and below.
Tensor padded_rows(CudaBackend& backend, const Context& context, const Tensor& x,
                   const Shape& shape) {
  Tensor whole = scratch(context, shape, x.dtype());
  if (whole.shape() != x.shape()) backend.fill(0, whole);
  Tensor part = part_of(whole, x.shape());
  backend.copy(x, part);
  return whole;
}
/// Returns a matrix with zeros to the right and below, in the same order in memory; x itself if
/// both sizes are multiples of the aligned length.
Tensor padded(CudaBackend& backend, const Context& context, const Tensor& x) {
  if (padded_shape(x.shape(), x.dtype()) == x.shape()) return x;
  const auto rows = [&](const Tensor& x) {
    return padded_rows(backend, context, x, padded_shape(x.shape(), x.dtype()));
  };
  return is_transposed(x) ? views::transpose(rows(views::transpose(x, 0, 1)), 0, 1) : rows(x);
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void CudaBackend::matmul(const Tensor& a, const Tensor& b, const Tensor& bias, Tensor& c) {
  if (c.numel() == 0) return;
  const auto add_bias = [&](const Tensor& sum) {
    binary(call_of<BinaryFormulas>(formula::Add{}), sum, views::expand(bias, c.shape()), c);
  };
  if (is_worth_padding(a, b, c)) {
    Tensor whole =
        scratch(context_, padded_shape(c.shape(), a.dtype()), bias.defined() ? f32 : c.dtype());
    if (cublaslt::matmul(context_, padded(*this, context_, a), padded(*this, context_, b), {},
                         whole)) {
      count_call(Family::matmul, By::cublaslt);
      const Tensor sum = part_of(whole, c.shape());
      return bias.defined() ? add_bias(sum) : copy(sum, c);
    }
  }
  if (a.numel() > 0 && cublaslt::matmul(context_, a, b, bias, c))
    return count_call(Family::matmul, By::cublaslt);
  // If cuBLASLt cannot add the bias, it is added after the product. A short c would be rounded
  // twice, so the product is then in f32.
  if (a.numel() > 0 && bias.defined()) {
    Tensor sum = size_of(c.dtype()) > 2 ? c : scratch(context_, c.shape(), f32);
    if (cublaslt::matmul(context_, a, b, {}, sum)) {
      count_call(Family::matmul, By::cublaslt);
      return add_bias(sum);
    }
  }
  count_call(Family::matmul, By::own_kernel);
  const ProductSizes sizes{c.rank() == 3 ? c.shape()[0] : 1, c.size(-2), c.size(-1), a.size(-1)};
  visit_floating(a.dtype(), "matmul", [&]<class T>() {
    const StoreMatrix<compute_t<T>> store{Operand(c), Operand(bias), sizes.rows, sizes.columns};
    product(context_, factor_of<T>(a, -2, -1), factor_of<T>(b, -1, -2), store, sizes);
  });
}

// Matrix products whose sums stay on a grid (core/formats/number_format.h). One thread computes one
// result, because its sum is a chain of roundings. Slow, with the same bits as on other backends.

namespace cuda {
namespace {

/// A matrix of a batch: element (i, j) of batch b is at b batch + i row + j column.
struct Matrices {
  Operand data;
  int64_t batch, row, column;
  explicit Matrices(const Tensor& x)
      : data(x),
        batch(x.rank() == 3 && x.size(0) > 1 ? x.strides()[0] : 0),
        row(x.strides()[x.rank() - 2]),
        column(x.strides()[x.rank() - 1]) {}
  __device__ float at(int64_t b, int64_t i, int64_t j) const {
    return load_as<float>(data, b * batch + i * row + j * column);
  }
};

template <bool with_scales>
__global__ void accumulate_kernel(Accumulator unit, Grid grid, int64_t chunk, Matrices a,
                                  Matrices b, Operand bias, int64_t bias_step, Operand c,
                                  int64_t batches, int64_t m, int64_t n, int64_t k) {
  for (int64_t i = global_thread(); i < batches * m * n; i += all_threads()) {
    const int64_t column = i % n, row = i / n % m, batch = i / n / m;
    float total = 0;
    for (int64_t first = 0; first < k; first += chunk) {
      const int64_t end = first + chunk < k ? first + chunk : k;
      const float sum = visit_rounding(unit.rounding, [&]<Rounding r>() {
        return sums::added<r, with_scales>(unit, grid, end - first, 0, [&](int64_t i) {
          return sums::Factors{a.at(batch, row, first + i), b.at(batch, first + i, column)};
        });
      });
      total = rounded_sum(total, sum);
    }
    if (bias.data) total = rounded_sum(total, load_as<float>(bias, column * bias_step));
    store_as(c, i, total);
  }
}

}  // namespace
}  // namespace cuda

// Products of f8 numbers by cuBLASLt, whose sums are the tensor cores'. Both matrices have the
// dimension of the sum contiguous, which all GPUs with such products take. cuBLASLt has factors of
// rows on sm_90 only; elsewhere the f32 sums are scaled afterwards.

namespace cuda {
namespace {

enum class F8Factors : uint8_t { scalars, rows, blocks };

/// Returns the numbers of a matrix as rows of lengths that products of f8 take.
Tensor f8_rows(CudaBackend& backend, const Context& context, const Tensor& x, F8Factors factors) {
  const int64_t least = factors == F8Factors::blocks ? f8_block : aligned_length(x.dtype());
  const Shape shape{padded_shape(x.shape(), x.dtype())[0], (x.size(1) + least - 1) / least * least};
  const bool fits = x.is_contiguous() && shape == x.shape() &&
                    reinterpret_cast<uintptr_t>(x.raw_data()) % 16 == 0;
  return fits ? x : padded_rows(backend, context, x, shape);
}

/// Returns one factor for each of `count` rows, from a scalar or from those of the first rows.
Tensor f8_row_factors(CudaBackend& backend, const Context& context, const Tensor& factor,
                      int64_t count) {
  if (factor.shape() == Shape{count}) return factor;
  Tensor all = scratch(context, {count}, f32);
  const int64_t own = factor.rank() == 0 ? count : factor.size(0);
  if (own < count) backend.fill(0, all);
  Tensor first = views::slice(all, 0, 0, own);
  backend.copy(views::expand(factor, {own}), first);
  return all;
}

__global__ void e8m0_kernel(const float* factors, int64_t rows, int64_t blocks, uint8_t* bytes,
                            int64_t count) {
  for (int64_t i = global_thread(); i < count; i += all_threads()) {
    const auto [row, block] = cublaslt::e8m0_place(i, blocks);
    const bool inside = row < rows && block < blocks;
    // The exponent's bits; 2^-127, which is subnormal, is 0.
    bytes[i] = inside ? uint8_t(std::bit_cast<uint32_t>(factors[row * blocks + block]) >> 23) : 0;
  }
}
/// Returns factors of blocks, which are powers of two, as bytes in cuBLASLt's order.
Tensor e8m0_factors(const Context& context, const Tensor& factor) {
  const int64_t rows = factor.size(0), blocks = factor.size(1);
  Tensor bytes = scratch(context, {cublaslt::e8m0_bytes(rows, blocks)}, u8);
  launch(context, e8m0_kernel, shape_for(context, bytes.numel()), factor.data<float>(), rows,
         blocks, bytes.data<uint8_t>(), bytes.numel());
  return bytes;
}

/// c = sum (a b) + bias, with a factor a for each row and b for each column.
__global__ void scale_kernel(const float* sum, int64_t length, const float* a, const float* b,
                             Operand bias, Operand c, int64_t rows, int64_t columns) {
  for (int64_t at = global_thread(); at < rows * columns; at += all_threads()) {
    const int64_t i = at / columns, j = at % columns;
    float y = rounded_product(sum[i * length + j], rounded_product(a[i], b[j]));
    if (bias.data) y = rounded_sum(y, load_as<float>(bias, j));
    store_as(c, at, y);
  }
}

/// Return one matrix of a batch; a batch of one matrix serves every product.
Tensor matrix_of(const Tensor& x, int64_t i) {
  const Shape shape{x.size(1), x.size(2)};
  return x.view_as(shape, {x.strides()[1], x.strides()[2]},
                   x.offset() + (x.size(0) > 1 ? i * x.strides()[0] : 0));
}
F8Operand matrix_of(const F8Operand& x, int64_t i) {
  F8Operand one = x;
  one.numbers = matrix_of(x.numbers, i);
  if (x.factor.rank() > 0 && x.numbers.size(0) > 1) {
    const int64_t rows = x.factor.size(0) / x.numbers.size(0);
    one.factor = views::slice(x.factor, 0, i * rows, rows);
  }
  return one;
}

void multiply_f8(CudaBackend& backend, Context& context, const F8Operand& a, const F8Operand& b,
                 const Tensor& bias, Tensor& c) {
  const int ranks = std::max(a.factor.rank(), b.factor.rank());
  const F8Factors scaled = ranks == 0   ? F8Factors::scalars
                           : ranks == 1 ? F8Factors::rows
                                        : F8Factors::blocks;
  const auto along_sum = [](const Tensor& factor, const Tensor& numbers) {
    return factor.rank() == 0 || (factor.size(0) == numbers.size(0) &&
                                  (numbers.strides()[1] == 1 || numbers.size(1) == 1));
  };
  if (!along_sum(a.factor, a.numbers) || !along_sum(b.factor, views::transpose(b.numbers, 0, 1)))
    fail<UnsupportedError>("matmul", "the factors of ", described(a.numbers), " or ",
                           described(b.numbers),
                           " belong to rows of another dimension than the "
                           "sum's. Quantize the operand for this product.");
  const Tensor rows = f8_rows(backend, context, a.numbers, scaled);
  const Tensor columns =
      views::transpose(f8_rows(backend, context, views::transpose(b.numbers, 0, 1), scaled), 0, 1);
  const Shape shape{rows.size(0), columns.size(1)};
  std::array factors{a.factor, b.factor};
  if (scaled == F8Factors::rows)
    for (std::size_t i = 0; i < 2; ++i)
      factors[i] = f8_row_factors(backend, context, factors[i], shape[int(i)]);
  if (scaled == F8Factors::blocks)
    for (Tensor& factor : factors) factor = e8m0_factors(context, factor);
  if (c.shape() == shape && cublaslt::matmul(context, rows, columns, bias, c, factors))
    return count_call(Family::matmul, By::cublaslt);
  Tensor whole = scratch(context, shape, bias.defined() ? f32 : c.dtype());
  bool done = cublaslt::matmul(context, rows, columns, {}, whole, factors);
  if (!done && scaled == F8Factors::rows) {
    const Tensor one = ones({}, f32, c.device());
    Tensor sums = scratch(context, shape, f32);
    if (cublaslt::matmul(context, rows, columns, {}, sums, {one, one})) {
      count_call(Family::matmul, By::cublaslt);
      return launch(context, scale_kernel, shape_for(context, c.numel()), sums.data<float>(),
                    shape[1], factors[0].data<float>(), factors[1].data<float>(), Operand(bias),
                    Operand(c), c.size(0), c.size(1));
    }
  }
  if (!done)
    fail<UnsupportedError>("matmul", "cuBLASLt declines a product of ", described(a.numbers),
                           " and ", described(b.numbers), " into ", c.dtype(),
                           ". HALFTONE_CUDA_LOG=1 says why; \"compute\": \"f32\" emulates it.");
  count_call(Family::matmul, By::cublaslt);
  const Tensor sum = part_of(whole, c.shape());
  if (!bias.defined()) return backend.copy(sum, c);
  backend.binary(call_of<BinaryFormulas>(formula::Add{}), sum, views::expand(bias, c.shape()), c);
}

}  // namespace
}  // namespace cuda

bool CudaBackend::f8_blocks() const {
  const int capability = context_.compute_capability();
  return f8_sums() && capability >= 100 && capability < 110;
}

const Accumulator* CudaBackend::f8_sums() const {
  const int capability = context_.compute_capability();
  if (!cublaslt::is_usable() || capability < 89) return nullptr;
  static const auto* const ada = accumulator_named("l40-mma-f8");
  static const auto* const hopper = accumulator_named("h100-wgmma-f8");
  static const auto* const blackwell = accumulator_named("b200-tcgen05-f8");
  if (capability < 100) return capability == 89 ? ada : hopper;
  return capability < 110 ? blackwell : nullptr;  // how others add is not known
}

void CudaBackend::matmul_accumulating(const Tensor& a, const Tensor& b, const Tensor& bias,
                                      const Accumulator& accumulator, Tensor& c) {
  using namespace cuda;
  if (c.numel() == 0) return;
  const auto left = f8_operand(a), right = f8_operand(b);
  if (left.has_value() != right.has_value())
    fail<UsageError>("matmul",
                     "a product in hardware has one operand of f8 numbers, and a copy of "
                     "the other: ",
                     described(a), " and ", described(b),
                     ". Give matrices of one batch size, or use \"compute\": \"f32\".");
  if (left && right && a.numel() > 0) {
    if (a.rank() == 2) return multiply_f8(*this, context_, *left, *right, bias, c);
    for (int64_t i = 0; i < c.size(0); ++i) {
      Tensor result = matrix_of(c, i);
      multiply_f8(*this, context_, matrix_of(*left, i), matrix_of(*right, i), bias, result);
    }
    return;
  }
  const int64_t m = c.size(-2), n = c.size(-1), k = a.size(-1);
  const Accumulator unit = sums::counting_scales(accumulator);
  launch(context_, unit.scaled > 0 ? accumulate_kernel<true> : accumulate_kernel<false>,
         shape_for(context_, c.numel()), unit, grid_of(accumulator.grid, accumulator.rounding),
         unit.chunk > 0 ? int64_t(unit.chunk) : (k > 0 ? k : 1), Matrices(a), Matrices(b),
         Operand(bias), bias.defined() ? bias.strides()[0] : int64_t(0), Operand(c),
         c.numel() / (m * n), m, n, k);
}

// One step of an LSTM and of a GRU, one thread per number of the state, like the one in
// backends/reference/cells.h:
//   LSTM: i, f, o = sigmoid, g = tanh;  c' = f c + i g;  y = o tanh(c')
//   GRU:  r, z = sigmoid(x + u);  m = tanh(x + r u);  y = (1 - z) m + z h

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

void CudaBackend::lstm_cell(const LstmCellCall& call) {
  if (call.y.numel() == 0) return;
  const Tensor recurrent = converted(*this, call.recurrent, call.cell.dtype());
  visit_floating(call.x.dtype(), "lstm", [&]<class T>() {
    using C = compute_t<T>;
    launch(context_, lstm_kernel<T, C>, shape_for(context_, call.y.numel()), call.y.size(0),
           call.y.size(1), call.x.data<T>(), recurrent.data<C>(), call.cell_before.data<C>(),
           call.gates.data<T>(), call.cell.data<C>(), call.y.data<T>());
  });
}

void CudaBackend::lstm_cell_backward(const LstmCellBackwardCall& call) {
  if (call.dy.numel() == 0) return;
  visit_floating(call.gates.dtype(), "lstm", [&]<class T>() {
    using C = compute_t<T>;
    launch(context_, lstm_backward_kernel<T, C>, shape_for(context_, call.dy.numel()),
           call.dy.size(0), call.dy.size(1), call.gates.data<T>(), call.cell_before.data<C>(),
           call.cell.data<C>(), call.dy.data<T>(), call.dstate.data<C>(), call.dcell.data<C>(),
           call.dgates.data<T>());
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

void CudaBackend::gru_cell_backward(const GruCellBackwardCall& call) {
  if (call.dy.numel() == 0) return;
  visit_floating(call.gates.dtype(), "gru", [&]<class T>() {
    using C = compute_t<T>;
    launch(context_, gru_backward_kernel<T, C>, shape_for(context_, call.dy.numel()),
           call.dy.size(0), call.dy.size(1), call.gates.data<T>(), call.state.data<T>(),
           call.dy.data<T>(), call.dstate.data<C>(), call.dx.data<T>(), call.drecurrent.data<T>());
  });
}

}  // namespace halftone
