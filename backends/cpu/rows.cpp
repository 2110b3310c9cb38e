// Softmax, log-sum-exp and cross-entropy, one row at a time. Rows of short floats are widened into
// a buffer of one row, so no f32 copy of the whole tensor exists.
#include <algorithm>
#include <cmath>

#include <halftone/backends/cpu/cpu_backend.h>
#include <halftone/backends/cpu/staging.h>
#include <halftone/backends/reference/row_blocks.h>
#include <halftone/core/math.h>

namespace halftone {

namespace {
/// Calls body(first, last, scratch) for groups of rows, in parallel; scratch holds
/// `rows_of_scratch` rows of n floats.
template <class Body>
void for_row_groups(int64_t rows, int64_t n, int64_t rows_of_scratch, const Body& body) {
  const int64_t group = std::max<int64_t>(1, reference::grain_length / std::max<int64_t>(n, 1));
  const int64_t groups = reference::pieces_of(rows, group);
  reference::Tasks tasks(groups);
  reference::RegionError error;
#pragma omp parallel if (groups > reference::worth_waking(1))
  {
    reference::OfThread<cpu::Workspace<float>> scratch(error, rows_of_scratch * n);
    tasks.each([&](int64_t g) {
      if (scratch) body(g * group, std::min(rows, (g + 1) * group), scratch->data());
    });
  }
  error.rethrow();
}

int64_t row_length(const Tensor& x) { return x.rank() == 0 ? 1 : x.shape()[x.rank() - 1]; }
int64_t row_count(const Tensor& x) { return x.numel() / std::max<int64_t>(row_length(x), 1); }
}  // namespace

void CpuBackend::softmax(const Tensor& x, bool logarithm, Tensor& y) {
  if (!cpu::all_f32_or_short(x, y) || x.numel() == 0)
    return ReferenceBackend::softmax(x, logarithm, y);
  const int64_t n = row_length(x);
  for_row_groups(row_count(x), n, 2,
                 [&, &k = simd_kernels()](int64_t first, int64_t last, float* scratch) {
                   for (int64_t row = first; row < last; ++row) {
                     cpu::Output output(y, row * n, 1, n, scratch + n);
                     k.softmax(cpu::floats(x, row * n, 1, n, scratch), n, logarithm, output.data());
                     output.finish();
                   }
                 });
}

void CpuBackend::softmax_backward(const Tensor& y, const Tensor& dy, bool logarithm, Tensor& dx) {
  if (!cpu::all_f32_or_short(y, dy, dx) || y.numel() == 0)
    return ReferenceBackend::softmax_backward(y, dy, logarithm, dx);
  const int64_t n = row_length(y);
  for_row_groups(row_count(y), n, 3,
                 [&, &k = simd_kernels()](int64_t first, int64_t last, float* scratch) {
                   for (int64_t row = first; row < last; ++row) {
                     cpu::Output output(dx, row * n, 1, n, scratch + 2 * n);
                     k.softmax_backward(cpu::floats(y, row * n, 1, n, scratch),
                                        cpu::floats(dy, row * n, 1, n, scratch + n), n, logarithm,
                                        output.data());
                     output.finish();
                   }
                 });
}

void CpuBackend::log_sum_exp(const Tensor& x, Tensor& y) {
  if (!cpu::all_f32_or_short(x, y) || x.numel() == 0) return ReferenceBackend::log_sum_exp(x, y);
  const int64_t n = row_length(x);
  for_row_groups(row_count(x), n, 1,
                 [&, &k = simd_kernels()](int64_t first, int64_t last, float* scratch) {
                   for (int64_t row = first; row < last; ++row) {
                     float shift;
                     const float sum = k.exp_sum(cpu::floats(x, row * n, 1, n, scratch), n, &shift);
                     reference::store_one(double(shift) + elementary::log(double(sum)), y, row);
                   }
                 });
}

namespace {
/// Returns whether this is the usual case of training, without class weights. Label smoothing also
/// needs the row's sum.
bool plain_targets(const Tensor& logits, const Tensor& class_weights) {
  return cpu::is_f32_or_short(logits) && !class_weights.defined() && logits.numel() > 0;
}
}  // namespace

void CpuBackend::cross_entropy(const Tensor& logits, const Tensor& targets,
                               const Tensor& class_weights, const CrossEntropySettings& settings,
                               Tensor& losses, Tensor& row_weights, Tensor& log_sum_exp) {
  const int64_t rows = logits.shape()[0], n = logits.shape()[1];
  const int64_t* target = targets.data<int64_t>();
  const auto valid = [&](int64_t t) { return t == settings.ignore_index || (t >= 0 && t < n); };
  // The reference names the first target that is out of range.
  if (!plain_targets(logits, class_weights) || !std::all_of(target, target + rows, valid))
    return ReferenceBackend::cross_entropy(logits, targets, class_weights, settings, losses,
                                           row_weights, log_sum_exp);
  const double smoothing = settings.label_smoothing;
  for_row_groups(rows, n, 2, [&, &k = simd_kernels()](int64_t first, int64_t last, float* scratch) {
    float* const below = scratch + n;
    for (int64_t row = first; row < last; ++row) {
      const float* x = cpu::floats(logits, row * n, 1, n, scratch);
      float shift;
      const float total = k.exp_sum(x, n, &shift);
      const float sum = float(reference::ExpTotal{shift, total}.or_nan().sum);
      const double log_sum = elementary::log(double(sum));
      const bool counts = target[row] != settings.ignore_index;
      double loss = counts ? double(shift) - double(x[target[row]]) + log_sum : 0.0;
      if (counts && smoothing != 0) {
        for (int64_t j = 0; j < n; ++j) below[j] = x[j] - shift;  // x's own sum would be rounded
        loss = (1 - smoothing) * loss + smoothing * (log_sum - k.sum(below, n) / double(n));
      }
      log_sum_exp.data<float>()[row] = shift, log_sum_exp.data<float>()[rows + row] = sum;
      losses.data<float>()[row] = float(loss);
      row_weights.data<float>()[row] = counts ? 1.0f : 0.0f;
    }
  });
}

void CpuBackend::cross_entropy_backward(const Tensor& logits, const Tensor& targets,
                                        const Tensor& class_weights,
                                        const CrossEntropySettings& settings,
                                        const Tensor& log_sum_exp, const Tensor& row_scale,
                                        Tensor& dlogits) {
  if (!plain_targets(logits, class_weights))
    return ReferenceBackend::cross_entropy_backward(logits, targets, class_weights, settings,
                                                    log_sum_exp, row_scale, dlogits);
  const int64_t rows = logits.shape()[0], n = logits.shape()[1], step = row_scale.strides()[0];
  const float even = float(settings.label_smoothing / double(n)),
              own = float(1 - settings.label_smoothing);
  for_row_groups(rows, n, 2, [&, &k = simd_kernels()](int64_t first, int64_t last, float* scratch) {
    for (int64_t row = first; row < last; ++row) {
      cpu::Output output(dlogits, row * n, 1, n, scratch + n);
      float* dx = output.data();
      const int64_t t = targets.data<int64_t>()[row];
      const float scale = row_scale.data<float>()[row * step];
      if (t == settings.ignore_index) {
        std::fill_n(dx, n, 0.0f);
      } else {
        k.exp_shifted(cpu::floats(logits, row * n, 1, n, scratch), log_sum_exp.data<float>()[row],
                      scale / log_sum_exp.data<float>()[rows + row], dx, n);
        dx[t] -= scale * own;
        if (even != 0)
          for (int64_t j = 0; j < n; ++j) dx[j] -= scale * even;
      }
      output.finish();
    }
  });
}

}  // namespace halftone
