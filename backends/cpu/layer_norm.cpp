// Layer and RMS normalization by rows. Statistics and the gradients of weights are accumulated in
// fixed groups of rows, so they do not depend on the number of threads.
#include <cfloat>
#include <cmath>

#include <halftone/backends/cpu/cpu_backend.h>
#include <halftone/backends/cpu/row_groups.h>

namespace halftone {

namespace {
/// A sum of rows of n floats. At most eight rows are added up in float, so the error does not grow
/// with the number of rows.
class RowSum {
 public:
  RowSum(double* total, int64_t n) : total_(total), n_(n), recent_(n) {
    std::fill_n(total, n, 0.0), std::fill_n(recent_.data(), n, 0.0f);
  }
  float* recent() { return recent_.data(); }
  void row_added() {
    if (++rows_ % 8 == 0) join();
  }
  void join() {
    simd_kernels().join(recent_.data(), total_, n_);
    std::fill_n(recent_.data(), n_, 0.0f);
  }

 private:
  double* total_;
  int64_t n_, rows_ = 0;
  cpu::Workspace<float> recent_;
};

/// Computes into = the sum over groups of partial[group, n].
void add_groups(cpu::Workspace<double>& partial, int64_t groups, int64_t n, const Tensor& into) {
  if (!into.defined()) return;
  for (int64_t j = 0; j < n; ++j) {
    double total = 0;
    for (int64_t g = 0; g < groups; ++g) total += partial[g * n + j];
    reference::store_one(total, into, j);
  }
}
/// Returns the mean square of n numbers, rounded to float if it has one that is not subnormal.
double mean_square(const float* x, int64_t n) {
  const double mean = simd_kernels().sum_of_squares(x, n) / double(n);
  return mean >= double(FLT_MIN) && mean <= double(FLT_MAX) ? double(float(mean)) : mean;
}
}  // namespace

void CpuBackend::layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                            Tensor& y, Tensor& mean, Tensor& rstd) {
  if (!cpu::all_f32_or_short(x, weight, bias, y) || x.numel() == 0)
    return ReferenceBackend::layer_norm(x, weight, bias, eps, y, mean, rstd);
  const simd::Kernels& k = simd_kernels();
  const int64_t n = x.shape()[1], rows = x.shape()[0], group = cpu::group_of(rows, n);
  const cpu::WholeInput w(weight), b(bias);
  cpu::parallel_pieces(rows, group, [&](int64_t first, int64_t last) {
    cpu::Workspace<float> scratch(2 * n);
    for (int64_t row = first; row < last; ++row) {
      const float* in = cpu::floats(x, row * n, 1, n, scratch.data());
      float center = 0;
      double variance = 0;
      if (mean.defined()) k.moments(in, n, &center, &variance);
      else variance = mean_square(in, n);
      const auto scale = float(1 / std::sqrt(variance + eps));
      cpu::Output output(y, row * n, 1, n, scratch.data() + n);
      k.normalize(in, center, scale, w.data(), b.data(), output.data(), n);
      output.finish();
      if (mean.defined()) mean.data<float>()[row] = center;
      rstd.data<float>()[row] = scale;
    }
  });
}

void CpuBackend::layer_norm_backward(const Tensor& x, const Tensor& weight, const Tensor& mean,
                                     const Tensor& rstd, const Tensor& dy, Tensor& dx,
                                     Tensor& dweight, Tensor& dbias) {
  if (!cpu::all_f32_or_short(x, weight, dy, dx) || x.numel() == 0)
    return ReferenceBackend::layer_norm_backward(x, weight, mean, rstd, dy, dx, dweight, dbias);
  const simd::Kernels& k = simd_kernels();
  const int64_t n = x.shape()[1], rows = x.shape()[0], group = cpu::group_of(rows, n);
  const int64_t groups = reference::pieces_of(rows, group);
  const cpu::WholeInput w(weight);
  cpu::Workspace<double> weight_sums(groups * n), bias_sums(groups * n);
  cpu::parallel_pieces(rows, group, [&](int64_t first, int64_t last) {
    cpu::Workspace<float> scratch(3 * n);
    const int64_t at = first / group * n;
    RowSum of_weight(weight_sums.data() + at, n), of_bias(bias_sums.data() + at, n);
    for (int64_t row = first; row < last; ++row) {
      const float* in = cpu::floats(x, row * n, 1, n, scratch.data());
      const float* g = cpu::floats(dy, row * n, 1, n, scratch.data() + n);
      const float center = mean.defined() ? mean.data<float>()[row] : 0.0f;
      std::optional<cpu::Output> output;
      if (dx.defined()) output.emplace(dx, row * n, 1, n, scratch.data() + 2 * n);
      k.norm_backward(in, center, rstd.data<float>()[row], mean.defined(), w.data(), g,
                      output ? output->data() : nullptr,
                      dweight.defined() ? of_weight.recent() : nullptr,
                      dbias.defined() ? of_bias.recent() : nullptr, n);
      if (dweight.defined()) of_weight.row_added();
      if (dbias.defined()) of_bias.row_added();
      if (output) output->finish();
    }
    if (dweight.defined()) of_weight.join();
    if (dbias.defined()) of_bias.join();
  });
  add_groups(weight_sums, groups, n, dweight);
  add_groups(bias_sums, groups, n, dbias);
}

}  // namespace halftone
