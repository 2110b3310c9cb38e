// Multi-head attention (Vaswani et al. 2017): linear maps before and after
// scaled_dot_product_attention. As torch.nn.MultiheadAttention with batch_first: in_proj_weight [3
// width, width] holds the maps of queries, keys and values; first values are the same.
#pragma once

#include <halftone/nn/linear.h>

namespace halftone::nn {

struct MultiheadAttentionOptions {
  bool bias = true;
  double dropout = 0;  // for the attention weights, in training
};

struct MultiheadAttention final : Layer {
  Parameter in_proj_weight, in_proj_bias;
  Linear out_proj;
  int64_t heads;
  double dropout;
  MultiheadAttention(int64_t width, int64_t heads, MultiheadAttentionOptions options = {});

  using Layer::operator();
  /// Self-attention. x: [n, l, width]; the result has the same shape.
  Tensor forward(const Tensor& x) const override { return (*this)(x, AttentionOptions{}); }
  /// The same with a mask or causal; the dropout of `options` is ignored, the layer's is used.
  Tensor operator()(const Tensor& x, const AttentionOptions& options) const;
  /// query: [n, l, width]; key, value: [n, s, width]; the result: [n, l, width].
  Tensor operator()(const Tensor& query, const Tensor& key, const Tensor& value,
                    const AttentionOptions& options = {}) const;
  void describe(Fields& field) override;

 private:
  AttentionOptions with_dropout(const AttentionOptions& options) const;
};

}  // namespace halftone::nn
