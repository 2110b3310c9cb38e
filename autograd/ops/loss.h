// Losses. cross_entropy is one fused operation: softmax, logarithm, gathering, class weights and
// label smoothing in a single pass over the logits in their own dtype, without an f32 copy of them.
#pragma once

#include <halftone/autograd/ops/index.h>
#include <halftone/autograd/ops/sequences.h>

namespace halftone {

/// How losses become one number; `none` keeps the losses themselves. batchmean, the sum divided by
/// the size of the first dimension, is for kl_div() alone.
enum class LossReduction { mean, sum, none, batchmean };

struct CrossEntropyOptions {
  Tensor weight{};              // one weight per class, or undefined
  double label_smoothing = 0;   // on [0, 1)
  int64_t ignore_index = -100;  // rows with this target are ignored
  LossReduction reduction =
      LossReduction::mean;  // the mean divides by the sum of the targets' weights
};

namespace detail {
inline DType statistics_dtype(DType dtype) { return dtype == f64 ? f64 : f32; }
/// Throws UsageError for batchmean.
void refuse_batchmean(std::string_view op, LossReduction reduction);
/// Returns the mean, the sum, or all losses.
Tensor reduced(std::string_view op, const Tensor& losses, LossReduction reduction);

/// Reduces the losses of rows, with row weights; `total` receives the divisor of the mean.
inline Tensor reduce_rows(const Tensor& losses, const Tensor& row_weights, LossReduction reduction,
                          Tensor& total) {
  if (reduction == LossReduction::none) return losses;
  if (reduction == LossReduction::sum) return sum(losses);
  total = sum(row_weights);
  return sum(losses) / total;
}
/// Returns the factor of each row's loss in backward, as a vector of [rows].
inline Tensor row_scale(const Tensor& dy, const Tensor& total, LossReduction reduction,
                        int64_t rows, DType dtype) {
  Tensor wide = views::contiguous(cast(dy, dtype));
  if (reduction == LossReduction::none) return wide;
  return views::expand(reduction == LossReduction::mean ? wide / total : wide, {rows});
}
void check_class_loss(std::string_view op, const Tensor& x, const Tensor& targets,
                      const CrossEntropyOptions& options);
}  // namespace detail

/// Cross-entropy of logits [rows, classes] with i64 targets [rows]. As
/// torch.nn.functional.cross_entropy:
///   loss_i = (1 - s) w[t] (-log p[t]) + s / C sum_c w[c] (-log p[c])
struct CrossEntropy {
  static constexpr OpInfo info{
      "cross_entropy", CastClass::full_precision, cast_reason::loss, {.is_loss = true}};
  static constexpr bool reads_waiting = true;
  CrossEntropyOptions options;
  bool f32_result = false;
  Tensor logits{}, targets{}, log_sum_exp{}, total{};  // log_sum_exp: [2, rows], in two parts
  DType from{};

  CrossEntropySettings settings() const { return {options.label_smoothing, options.ignore_index}; }

  Tensor forward(const Tensor& x, const Tensor& t) {
    detail::check_class_loss("cross_entropy", x, t, options);
    const DType wide = detail::statistics_dtype(x.dtype());
    if (options.weight.defined())
      options.weight = views::contiguous(cast(options.weight.detach(), wide));
    // The logits may be the cast of short ones, with the same values.
    from = x.dtype(), logits = views::contiguous(from == f32 ? narrowest(x) : x);
    targets = views::contiguous(t);
    log_sum_exp = empty({2, x.shape()[0]}, wide, x.device());
    Tensor losses = empty({x.shape()[0]}, wide, x.device()), row_weights = empty_like(losses);
    backend_for(x).cross_entropy(logits, targets, options.weight, settings(), losses, row_weights,
                                 log_sum_exp);
    return cast(detail::reduce_rows(losses, row_weights, options.reduction, total),
                f32_result ? f32 : x.dtype());
  }
  std::array<Tensor, 2> backward(const Tensor& dy) const;
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;
};

/// Negative log-likelihood of log-probabilities [rows, classes]; no label smoothing. As torch's
/// nll_loss. Only targets are selected; others are not multiplied by 0: they may be infinite.
struct NllLoss {
  static constexpr OpInfo info{
      "nll_loss", CastClass::full_precision, cast_reason::loss, {.is_loss = true}};
  CrossEntropyOptions options;
  Tensor chosen{}, row_weights{}, total{};  // chosen: bool [rows, classes], true at (i, t_i)
  DType dtype{};

  Tensor forward(const Tensor& x, const Tensor& targets);
  std::array<Tensor, 2> backward(const Tensor& dy) const;
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;
};

namespace detail {
/// Returns cross_entropy() for targets that are probabilities, of the logits' shape.
Tensor soft_cross_entropy(const Tensor& logits, const Tensor& targets,
                          const CrossEntropyOptions& options);
}  // namespace detail

/// As torch's cross_entropy. logits: [classes], [n, classes] or [n, classes, d1, ...]; targets: i64
/// or i32 without the class dimension, or probabilities of the logits' shape; for these, the mean
/// is the sum divided by the number of rows.
Tensor cross_entropy(const Tensor& logits, const Tensor& targets,
                     const CrossEntropyOptions& options = {});
Tensor nll_loss(const Tensor& log_probabilities, const Tensor& targets,
                const CrossEntropyOptions& options = {});

namespace detail {
/// Returns formula(x, target), reduced. x and target do not broadcast: outputs [n, 1] with targets
/// [n] would compare each with each, and the model would not learn.
template <class F>
Tensor elementwise_loss(F formula, const Tensor& x, const Tensor& target, LossReduction reduction) {
  check::defined(F::info.name, "the output", x);
  check::defined(F::info.name, "the target", target);
  if (x.shape() != target.shape())
    fail<ShapeError>(F::info.name, "the outputs are ", described(x), ", the targets ",
                     described(target), ". They must have the same shape: reshape or expand one.");
  return reduced(F::info.name, binary(formula, x, target), reduction);
}
}  // namespace detail

// Losses of outputs and targets of one shape. They throw ShapeError for different shapes.

inline Tensor mse(const Tensor& x, const Tensor& target,
                  LossReduction reduction = LossReduction::mean) {
  return detail::elementwise_loss(formula::SquaredError{}, x, target, reduction);
}
inline Tensor l1(const Tensor& x, const Tensor& target,
                 LossReduction reduction = LossReduction::mean) {
  return detail::elementwise_loss(formula::AbsoluteError{}, x, target, reduction);
}
inline Tensor smooth_l1(const Tensor& x, const Tensor& target, double beta = 1,
                        LossReduction reduction = LossReduction::mean) {
  if (!(beta > 0))
    fail<UsageError>("smooth_l1", "beta is ", beta, ". It must be positive; use l1() for 0.");
  return detail::elementwise_loss(formula::SmoothL1{beta}, x, target, reduction);
}
/// Returns smooth_l1 times delta. As torch's huber_loss.
inline Tensor huber(const Tensor& x, const Tensor& target, double delta = 1,
                    LossReduction reduction = LossReduction::mean) {
  if (!(delta > 0)) fail<UsageError>("huber", "delta is ", delta, ". It must be positive.");
  return detail::elementwise_loss(formula::Huber{delta}, x, target, reduction);
}
/// Returns the Kullback-Leibler divergence of log-probabilities x from a target, given as
/// probabilities or, with `log_target`, as their logarithms. As torch's kl_div: the mean is over
/// all elements; batchmean is the divergence per row.
inline Tensor kl_div(const Tensor& x, const Tensor& target, bool log_target = false,
                     LossReduction reduction = LossReduction::mean) {
  if (reduction == LossReduction::batchmean)
    return kl_div(x, target, log_target, LossReduction::sum) / double(x.size(0));
  return log_target ? detail::elementwise_loss(formula::KlDivergenceOfLogs{}, x, target, reduction)
                    : detail::elementwise_loss(formula::KlDivergence{}, x, target, reduction);
}
/// Returns the binary cross-entropy of probabilities; NaN for a probability outside [0, 1]. As
/// torch's binary_cross_entropy. bce_with_logits() is more accurate, and allowed under autocast.
inline Tensor binary_cross_entropy(const Tensor& probabilities, const Tensor& target,
                                   LossReduction reduction = LossReduction::mean) {
  return detail::elementwise_loss(formula::BinaryCrossEntropy{}, probabilities, target, reduction);
}
/// Returns the same with a weight for each loss, which broadcasts to the target's shape and has no
/// gradient. The mean is the sum divided by the number of losses, not by the sum of weights.
Tensor binary_cross_entropy(const Tensor& probabilities, const Tensor& target, const Tensor& weight,
                            LossReduction reduction = LossReduction::mean);
/// Returns the binary cross-entropy of sigmoid(logits), in its stable form. As torch's
/// binary_cross_entropy_with_logits.
inline Tensor bce_with_logits(const Tensor& logits, const Tensor& target,
                              LossReduction reduction = LossReduction::mean) {
  return detail::elementwise_loss(formula::BceWithLogits{}, logits, target, reduction);
}
struct BceOptions {
  Tensor weight{};      // for each loss; undefined: 1
  Tensor pos_weight{};  // for the positive part, usually one per class; undefined: 1
  LossReduction reduction = LossReduction::mean;
};
/// Both weights broadcast to the logits' shape, and have no gradients.
Tensor bce_with_logits(const Tensor& logits, const Tensor& target, const BceOptions& options);

struct GaussianNllOptions {
  bool full = false;  // with the constant log(2 pi) / 2
  double eps = 1e-6;  // variances are at least this; gradients are not clamped
  LossReduction reduction = LossReduction::mean;
};
/// Returns (log variance + (x - target)^2 / variance) / 2, with a variance per element, per row or
/// for all. As torch.nn.functional.gaussian_nll_loss; a negative variance is an error on the CPU.
Tensor gaussian_nll_loss(const Tensor& x, const Tensor& target, const Tensor& variance,
                         const GaussianNllOptions& options = {});

struct TripletOptions {
  double margin = 1, p = 2, eps = 1e-6;
  bool swap = false;  // uses the distance from positive to negative if it is the smaller one
  LossReduction reduction = LossReduction::mean;
};
/// Returns max(|anchor - positive| - |anchor - negative| + margin, 0), norms of order p over the
/// last dimension. As torch.nn.functional.triplet_margin_loss.
Tensor triplet_margin_loss(const Tensor& anchor, const Tensor& positive, const Tensor& negative,
                           const TripletOptions& options = {});

/// Returns 1 - cos(a, b) for targets 1, and max(cos(a, b) - margin, 0) for targets -1: a and b are
/// [n, size] with targets [n], or vectors with a scalar. As torch.nn.functional's.
Tensor cosine_embedding_loss(const Tensor& a, const Tensor& b, const Tensor& target,
                             double margin = 0, LossReduction reduction = LossReduction::mean);
/// Returns max(-target (a - b) + margin, 0), for targets 1 (a is to be larger) and -1. The three
/// must have the same rank; they broadcast. As torch.nn.functional.margin_ranking_loss.
Tensor margin_ranking_loss(const Tensor& a, const Tensor& b, const Tensor& target,
                           double margin = 0, LossReduction reduction = LossReduction::mean);
/// Returns x for targets 1, and max(margin - x, 0) for targets -1; they broadcast. As
/// torch.nn.functional.hinge_embedding_loss.
Tensor hinge_embedding_loss(const Tensor& x, const Tensor& target, double margin = 1,
                            LossReduction reduction = LossReduction::mean);
/// Returns the binary cross-entropy of sigmoid(x), averaged over the last dimension, the classes;
/// `weight`, if defined, broadcasts to x. As torch.nn.functional.multilabel_soft_margin_loss.
Tensor multilabel_soft_margin_loss(const Tensor& x, const Tensor& target, const Tensor& weight = {},
                                   LossReduction reduction = LossReduction::mean);

struct PoissonNllOptions {
  bool log_input = true;  // x is the logarithm of the rate, not the rate
  bool full = false;      // with Stirling's approximation of log(target!)
  double eps = 1e-8;      // added to rates before their logarithm
  LossReduction reduction = LossReduction::mean;
};
/// Returns exp(x) - target x, or x - target log(x + eps). As torch.nn.functional.poisson_nll_loss.
Tensor poisson_nll_loss(const Tensor& x, const Tensor& target,
                        const PoissonNllOptions& options = {});

struct CtcOptions {
  int64_t blank = 0;           // the class that means: no label
  bool zero_infinity = false;  // losses without any alignment are 0, with gradients of 0
  LossReduction reduction = LossReduction::mean;  // divides each loss by its number of labels first
};
/// Returns the loss of connectionist temporal classification (Graves et al. 2006).
/// log_probabilities: [time, n, classes], or [time, classes] for one sequence; they must be the
/// result of log_softmax(), which the gradient assumes. targets: i64 or i32, either [n, longest],
/// or all labels one after the other, [sum of target_lengths]. Computed in f64. As
/// torch.nn.functional.ctc_loss; a second gradient is an error, as there.
Tensor ctc_loss(const Tensor& log_probabilities, const Tensor& targets,
                const std::vector<int64_t>& input_lengths,
                const std::vector<int64_t>& target_lengths, const CtcOptions& options = {});

}  // namespace halftone
