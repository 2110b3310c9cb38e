// Cross-entropy from logits, like torch.nn.functional.cross_entropy with class indices. It works
// one row at a time in the logits' own dtype, without a copy. With s = label smoothing, C classes
// and weights w (1 if absent):
//   losses[i] = (1 - s) w[t] (L - x[t]) + s / C * sum over c of w[c] (L - x[c])
// where L = log(sum(exp(x))).
#include <halftone/backends/reference/reference.h>

#include <halftone/backends/reference/row_blocks.h>
#include <halftone/core/math.h>

namespace halftone {

using namespace reference;

namespace {

int64_t target_of(const Tensor& targets, int64_t row) {
  int64_t target;
  load(targets, targets.rank() == 0 ? 0 : row * targets.strides()[0], 1, &target);
  return target;
}

/// Checks before the rows run in parallel, because the parallel loop must not throw.
void check_targets(const Tensor& targets, int64_t classes, int64_t ignore_index) {
  for (int64_t row = 0; row < targets.numel(); ++row) {
    const int64_t target = target_of(targets, row);
    if (target != ignore_index && (target < 0 || target >= classes))
      fail<UsageError>("cross_entropy", "target ", target, " at row ", row, " is out of range for ",
                       classes, " classes. Targets must be from 0 to ", classes - 1,
                       ", or ignore_index, which is ", ignore_index, ".");
  }
}

double weight_of(const Tensor& class_weights, int64_t target) {
  return class_weights.defined() ? load_one(class_weights, target) : 1.0;
}

double total_weight(const Tensor& class_weights, int64_t classes) {
  if (!class_weights.defined()) return double(classes);
  double total = 0;
  for (int64_t c = 0; c < classes; ++c) total += load_one(class_weights, c);
  return total;
}

}  // namespace

void ReferenceBackend::cross_entropy(const Tensor& logits, const Tensor& targets,
                                     const Tensor& class_weights,
                                     const CrossEntropySettings& settings, Tensor& losses,
                                     Tensor& row_weights, Tensor& log_sum_exp) {
  const int64_t rows = targets.numel(), classes = logits.size(-1);
  check_targets(targets, classes, settings.ignore_index);
  const double smoothing = settings.label_smoothing;
  const double all_weights = total_weight(class_weights, classes);
  each_row(rows, classes, [&](int64_t row) {
    ExpSum sum;
    // Sums w[c] (x[c] - origin): smaller numbers than w[c] x[c] if the logits have an offset.
    const double first_logit = classes > 0 ? load_one(logits, row * classes) : 0.0;
    const double origin = std::isfinite(first_logit) ? first_logit : 0.0;
    double weighted = 0;
    each_block(classes, [&](int64_t first, int64_t count) {
      double x[block_length], w[block_length];
      load(logits, row * classes + first, count, x);
      sum.add(x, count);
      if (smoothing == 0) return;
      load_or(1, class_weights, first, count, w);
      for (int64_t i = 0; i < count; ++i) weighted += w[i] * (x[i] - origin);
    });
    const ExpTotal total = sum.total().or_nan();
    const int64_t target = target_of(targets, row);
    double loss = 0, weight = 0;
    if (target != settings.ignore_index) {
      const double logit = load_one(logits, row * classes + target);
      weight = weight_of(class_weights, target);
      loss = (1 - smoothing) * weight * (total.shift - logit + total.log_sum());
      if (smoothing != 0)
        loss += smoothing / double(classes) *
                (all_weights * (total.shift - origin + total.log_sum()) - weighted);
    }
    store_one(loss, losses, row);
    store_one(weight, row_weights, row);
    store_one(total.shift, log_sum_exp, row);
    store_one(total.sum, log_sum_exp, rows + row);
  });
}

/// dx[j] = row_scale ((1 - s) w[t] (p[j] - [j == t]) + s / C (p[j] sum(w) - w[j])),   p = exp(x -
/// L)
void ReferenceBackend::cross_entropy_backward(const Tensor& logits, const Tensor& targets,
                                              const Tensor& class_weights,
                                              const CrossEntropySettings& settings,
                                              const Tensor& log_sum_exp, const Tensor& row_scale,
                                              Tensor& dlogits) {
  const int64_t rows = targets.numel(), classes = logits.size(-1);
  const double smoothing = settings.label_smoothing, share = smoothing / double(classes);
  const double all_weights = total_weight(class_weights, classes);
  const int64_t scale_step = row_scale.numel() == 1 ? 0 : row_scale.strides()[0];
  each_row(rows, classes, [&](int64_t row) {
    const int64_t target = target_of(targets, row);
    const bool ignored = target == settings.ignore_index;
    const double scale = load_one(row_scale, row * scale_step);
    const double shift = load_one(log_sum_exp, row), sum = load_one(log_sum_exp, rows + row);
    const double hard = ignored ? 0 : (1 - smoothing) * weight_of(class_weights, target);
    each_block(classes, [&](int64_t first, int64_t count) {
      double x[block_length], w[block_length];
      load(logits, row * classes + first, count, x);
      load_or(1, class_weights, first, count, w);
      for (int64_t i = 0; i < count; ++i) {
        const double p = elementary::exp(x[i] - shift) / sum;
        const double is_target = first + i == target ? 1 : 0;
        const double d = hard * (p - is_target) + share * (p * all_weights - w[i]);
        x[i] = ignored ? 0 : scale * d;  // not d * 0: an ignored row may contain NaN
      }
      store(x, count, dlogits, row * classes + first);
    });
  });
}

}  // namespace halftone
