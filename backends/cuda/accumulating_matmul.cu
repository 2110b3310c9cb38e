// Matrix products whose sums stay on a grid (core/formats/number_format.h). One thread computes one result,
// because its sum is a chain of roundings. Slow, with the same bits as on other backends.
#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/launch.h>
#include <halftone/backends/cuda/values.h>
#include <halftone/core/formats/number_format.h>

namespace halftone {

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

__global__ void accumulate_kernel(Grid grid, Rounding rounding, int64_t chunk, Matrices a,
                                  Matrices b, Operand bias, int64_t bias_step, Operand c,
                                  int64_t batches, int64_t m, int64_t n, int64_t k) {
  for (int64_t i = global_thread(); i < batches * m * n; i += all_threads()) {
    const int64_t column = i % n, row = i / n % m, batch = i / n / m;
    float total = 0;
    for (int64_t first = 0; first < k; first += chunk) {
      const int64_t end = first + chunk < k ? first + chunk : k;
      float sum = 0;
      for (int64_t p = first; p < end; ++p) {
        const float longer =
            rounded_sum(sum, rounded_product(a.at(batch, row, p), b.at(batch, p, column)));
        sum = visit_rounding(rounding,
                             [&]<Rounding r>() { return round_on<r, true>(grid, longer, 0); });
      }
      total = rounded_sum(total, sum);
    }
    if (bias.data) total = rounded_sum(total, load_as<float>(bias, column * bias_step));
    store_as(c, i, total);
  }
}

}  // namespace
}  // namespace cuda

void CudaBackend::matmul_accumulating(const Tensor& a, const Tensor& b, const Tensor& bias,
                                      const Accumulator& accumulator, Tensor& c) {
  using namespace cuda;
  if (c.numel() == 0) return;
  const int64_t m = c.size(-2), n = c.size(-1), k = a.size(-1);
  launch(context_, accumulate_kernel, shape_for(context_, c.numel()),
         grid_of(accumulator.grid, accumulator.rounding), accumulator.rounding,
         accumulator.chunk > 0 ? int64_t(accumulator.chunk) : (k > 0 ? k : 1), Matrices(a),
         Matrices(b), Operand(bias), bias.defined() ? bias.strides()[0] : int64_t(0), Operand(c),
         c.numel() / (m * n), m, n, k);
}

}  // namespace halftone
