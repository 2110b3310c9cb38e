// The presets. Operations on no published list are as_is here, or widest_input if their inputs must
// agree, which the systems promote natively.
#include <halftone/amp/presets.h>

namespace halftone::amp {

namespace {
CastClass as_asked(CastClass asked) { return asked; }
/// Returns the class that a system gives an operation on none of its lists.
CastClass unlisted(CastClass asked) {
  return asked == CastClass::widest_input ? asked : CastClass::as_is;
}
CastClass nothing(CastClass) { return CastClass::as_is; }
/// Returns low precision for everything that another policy would cast.
CastClass low(CastClass asked) {
  return asked == CastClass::as_is ? asked : CastClass::low_precision;
}

using enum CastClass;
}  // namespace

std::span<const Preset> presets() {
  static const std::vector<Preset> all{
      // ATen/autocast_mode.h, the lists of CUDA (2.15; tests/fixtures/pytorch/amp_policy_fixtures.py reads
      // them).
      // The operations ask for exactly that.
      {"pytorch-cuda", as_asked, {}},
      // aten/src/ATen/autocast_mode.cpp, the lists of the CPU: losses and prod in f32. Its
      // mkldnn_rnn_layer is our lstm; a GRU is on no list, and its states stay f32.
      {"pytorch-cpu",
       unlisted,
       {{low_precision,
         {"matmul", "linear", "conv2d", "conv_transpose2d", "prelu", "lstm",
          "scaled_dot_product_attention"}},
        {full_precision,
         {"cross_entropy", "nll_loss", "bce_with_logits", "binary_cross_entropy", "mse", "l1",
          "smooth_l1", "huber", "kl_div", "triplet_margin_loss", "prod"}},
        {widest_input, {"cat", "pow", "cosine_similarity", "gru", "einsum"}},
        {as_is, {"dot", "scatter_add"}}}},
      // apex/amp/lists/{functional,torch,tensor}_overrides.py, before its removal in 2025.
      {"apex-o1",
       unlisted,
       {{low_precision, {"matmul", "linear", "conv2d", "conv_transpose2d", "prelu", "lstm", "gru"}},
        {full_precision, {"interpolate", "cosine_similarity", "cumprod", "triplet_margin_loss"}},
        {full_precision,
         {"gelu",       "gelu_erf",   "softplus",      "softmax",  "log_softmax",
          "layer_norm", "group_norm", "cross_entropy", "nll_loss", "bce_with_logits",
          "mse",        "l1",         "smooth_l1",     "exp",      "expm1",
          "log",        "log2",       "log10",         "pow",      "rsqrt",
          "reciprocal", "sum",        "cumsum",        "var",      "norm",
          "kl_div",     "prod"}},
        {as_is, {"scaled_dot_product_attention", "einsum"}},
        {banned, {"binary_cross_entropy"}}}},
      // python/paddle/amp/amp_lists.py (2024): white list low, black list f32, the rest promotes.
      {"paddle-o1",
       unlisted,
       {{low_precision,
         {"matmul", "linear", "einsum", "conv2d", "max_pool2d", "scaled_dot_product_attention"}},
        {full_precision, {"interpolate", "cosine_similarity"}},
        {widest_input, {"lstm", "gru"}},
        {as_is, {"conv_transpose2d", "prelu"}},
        {full_precision,
         {"softplus",      "softmax",        "log_softmax", "layer_norm", "group_norm",
          "cross_entropy", "nll_loss",       "huber",       "exp",        "expm1",
          "log",           "log2",           "log10",       "pow",        "rsqrt",
          "reciprocal",    "square",         "sum",         "mean",       "cumsum",
          "norm",          "prod",           "embedding",   "mse",        "l1",
          "smooth_l1",     "bce_with_logits"}}}},
      // flashlight/fl/autograd/Functions.cpp, OptimLevel::O1: f16 except for these.
      {"flashlight-o1",
       low,
       {{full_precision,
         {"batch_norm", "batch_norm_relu", "layer_norm", "group_norm", "rms_norm", "reciprocal",
          "exp", "log", "log1p", "pow", "sum", "mean", "var", "norm", "softmax", "log_softmax",
          "cross_entropy", "gelu", "gelu_erf"}}}},
      {"none", nothing, {}},
      {"all-low", low, {}},
  };
  return all;
}

}  // namespace halftone::amp
