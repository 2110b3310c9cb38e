// The classes are PyTorch's list for CUDA (presets.cpp); the reasons are of numbers and kernels,
// and where there is none but history, that is said. A test holds classes and names against the
// operations themselves.
#include <halftone/amp/reasons.h>

#include <algorithm>

namespace halftone::amp {

std::span<const Reason> reasons() {
  using enum CastClass;
  static const std::vector<Reason> all{
      {low_precision,
       "most of the time, half the bytes; terms are summed in f32 inside",
       {"matmul", "linear", "einsum", "conv2d", "conv_transpose2d",
        "scaled_dot_product_attention"}},
      {low_precision, "made of matrix products, which sum in f32", {"lstm", "gru"}},
      {low_precision, "follows a convolution and may stay in its dtype", {"prelu"}},

      {full_precision,
       "exp leaves f16 beyond 11, and turns an error of x into a factor",
       {"exp", "expm1"}},
      {full_precision,
       "exp inside, and small probabilities beside large ones",
       {"softmax", "log_softmax", "logsumexp", "softplus"}},
      {full_precision,
       "steep near 0 or 1, where short formats are coarse",
       {"log", "log2", "log10", "log1p"}},
      {full_precision, "1 / x of a small x leaves f16's range", {"reciprocal", "rsqrt"}},
      {full_precision,
       "squares, powers and products leave f16's range: 256 * 256 is infinite",
       {"square", "pow", "prod", "cumprod"}},
      {full_precision,
       "grows with its number of terms: beyond f16's range, or bf16's whole numbers",
       {"sum", "cumsum", "norm"}},
      {full_precision,
       "a difference from a mean, over a root of squares: both cancel and overflow",
       {"layer_norm", "rms_norm", "group_norm", "cosine_similarity"}},
      {full_precision,
       "a loss is one number: f32 costs nothing, and every gradient begins here",
       {"cross_entropy", "nll_loss", "bce_with_logits", "mse", "l1", "smooth_l1", "huber", "kl_div",
        "triplet_margin_loss"}},
      {full_precision, "weights of neighbours add up to 1 only to the last place", {"interpolate"}},

      {widest_input,
       "two inputs must agree: nothing is lost in the wider dtype",
       {"add", "sub", "mul", "div", "remainder", "floor_divide", "maximum", "minimum", "where",
        "cat", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal"}},
      {widest_input, "sums several inputs, which must agree", {"dot", "scatter_add"}},

      {as_is,
       "moves numbers, and changes none",
       {"reshape", "permute", "expand", "slice", "pad", "contiguous", "flip", "gather",
        "embedding"}},
      {as_is,
       "chooses among its numbers: the result is one of them, or its place",
       {"max", "min", "argmax", "argmin", "argsort", "max_pool2d", "clamp", "relu"}},
      {as_is,
       "exact, or rounded once, in any dtype",
       {"abs", "neg", "sign", "floor", "ceil", "round", "sqrt", "sin", "cos", "leaky_relu",
        "affine", "dropout"}},
      {as_is,
       "bounded, or near its input: computed in f32 inside and rounded once",
       {"tanh", "sigmoid", "logsigmoid", "erf", "silu", "glu", "gelu", "gelu_erf", "elu", "mish",
        "hardswish"}},
      {as_is,
       "unlike sum no larger than its terms: summed in f32 inside and rounded once",
       {"mean", "avg_pool2d", "adaptive_avg_pool2d"}},
      {as_is, "by PyTorch's list alone; deviations are summed in f32 inside", {"var"}},
      {as_is,
       "statistics are f32 inside, whatever comes; one pass over short numbers",
       {"batch_norm", "batch_norm_relu", "instance_norm"}},
      {as_is, "true or false", {"all", "any", "logical_and", "logical_or", "logical_xor"}},
      {as_is, "rounds by a grid of its own", {"quantize"}},

      {banned,
       "log of a probability that sigmoid rounded to 0 or 1 is infinite",
       {"binary_cross_entropy"}},
  };
  return all;
}

std::string_view reason_of(std::string_view operation) {
  for (const Reason& reason : reasons())
    if (std::ranges::find(reason.operations, operation) != reason.operations.end())
      return reason.why;
  return "";
}

}  // namespace halftone::amp
