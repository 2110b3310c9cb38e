// Scaled dot-product attention (Vaswani et al. 2017): y = softmax(scale q k^T + mask) v. It is one
// operation, so that no backend ever stores the weights, [l, s] per head: backward recomputes them
// from their logarithmic sums (Dao et al. 2022). Under autocast the products are low precision, the
// softmax inside stays f32.
#pragma once

#include <optional>

#include <halftone/autograd/ops/shape.h>

namespace halftone {

struct AttentionOptions {
  /// Broadcasts to [..., l, s]: bool, true if a query sees a key, or floating, added to the scaled
  /// products.
  Tensor mask{};
  double dropout = 0;  // probability for weights; no training flag, as in PyTorch
  bool causal = false;
  std::optional<double> scale{};  // absent: 1 / sqrt(e)
  /// k and v may have fewer heads than q, a divisor of their number: neighbors share one. As
  /// PyTorch's; nothing is repeated in memory (Ainslie et al. 2023).
  bool enable_gqa = false;
};

/// q: [n, heads, l, e]; k: [n, key heads, s, e]; v: [n, key heads, s, ev]; mask: [n, heads, l, s]
/// or undefined. y: [n, heads, l, ev], its dimensions in q's order in memory.
struct Attention {
  static constexpr OpInfo info{"scaled_dot_product_attention",
                               CastClass::low_precision,
                               cast_reason::products,
                               {.sums = sums_over_last}};
  AttentionSettings settings;
  Tensor q{}, k{}, v{}, mask{}, y{}, log_sum_exp{};

  Tensor forward(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& m);
  std::array<Tensor, 4> backward(const Tensor& dy) const;
};

/// The same for self-attention, from one tensor qkv [n, l, 3 heads e], the output of one linear
/// layer: queries, then keys, then values, each with its heads next to each other. y: [n, l, heads
/// e]. Its gradient is one tensor as well.
struct PackedAttention {
  static constexpr OpInfo info = Attention::info;
  int64_t heads;
  AttentionSettings settings;
  Attention inner{};
  Tensor qkv{};

  Tensor forward(const Tensor& x, const Tensor& mask);
  std::array<Tensor, 2> backward(const Tensor& dy) const;
};

/// As torch.nn.functional.scaled_dot_product_attention, in memory linear in l and s. Ranks 2 to 4;
/// leading dimensions must agree. A mask that requires a gradient gets one, by separate operations
/// that do store the weights.
Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                    const AttentionOptions& options = {});
/// Returns the attention of each position to the others of its row. qkv: [n, l, 3 width], width
/// divisible by heads; the result: [n, l, width].
Tensor self_attention(const Tensor& qkv, int64_t heads, const AttentionOptions& options = {});

}  // namespace halftone
