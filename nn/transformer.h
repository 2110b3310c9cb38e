// Transformer encoders (Vaswani et al. 2017), with the names and first values of torch.nn's.
#pragma once

#include <optional>
#include <string_view>

#include <halftone/nn/conv.h>
#include <halftone/nn/layers.h>
#include <halftone/nn/module.h>

namespace halftone::nn {

struct TransformerEncoderLayerOptions {
  int64_t dim_feedforward = 2048;
  double dropout = 0.1;
  std::string_view activation = "relu";  // or "gelu", the exact one
  double layer_norm_eps = 1e-5;
  bool norm_first = false;  // norms before attention and feedforward, not after the sums
  bool bias = true;
};

/// Computes x = norm1(x + attention(x)), then norm2(x + feedforward(x)). As
/// torch.nn.TransformerEncoderLayer with batch_first.
struct TransformerEncoderLayer final : Layer {
  MultiheadAttention self_attn;
  Linear linear1, linear2;
  LayerNorm norm1, norm2;
  Dropout dropout, dropout1, dropout2;
  bool uses_gelu, norm_first;
  /// Throws UsageError for other activations, ShapeError if `heads` does not divide `width`.
  TransformerEncoderLayer(int64_t width, int64_t heads,
                          TransformerEncoderLayerOptions options = {});
  using Layer::operator();
  /// x: [n, l, width]; the result has the same shape.
  Tensor forward(const Tensor& x) const override { return encoded(x, {}, {}); }
  /// The same with the mask or the causal order of `options`; key_padding_mask hides padded keys.
  Tensor operator()(const Tensor& x, const AttentionOptions& options,
                    const Tensor& key_padding_mask = {}) const;
  void describe(Fields& field) override;

 private:
  Tensor encoded(const Tensor& x, const AttentionOptions& options, const Tensor& padding) const;
};

/// Layers in a row, and with `with_norm` a LayerNorm at the end. As torch.nn.TransformerEncoder,
/// but each layer draws its own initial weights. (PyTorch copies those of one layer.)
struct TransformerEncoder final : Layer {
  ModuleList<TransformerEncoderLayer> layers;
  std::optional<LayerNorm> norm{};
  /// Throws UsageError for fewer than one layer, and what TransformerEncoderLayer throws.
  TransformerEncoder(int64_t count, int64_t width, int64_t heads,
                     TransformerEncoderLayerOptions options = {}, bool with_norm = false);
  using Layer::operator();
  /// x: [n, l, width]; the result has the same shape.
  Tensor forward(const Tensor& x) const override { return encoded(x, {}, {}); }
  /// The same with `options` and key_padding_mask in every layer.
  Tensor operator()(const Tensor& x, const AttentionOptions& options,
                    const Tensor& key_padding_mask = {}) const;
  void describe(Fields& field) override;

 private:
  Tensor encoded(const Tensor& x, const AttentionOptions& options, const Tensor& padding) const;
};

}  // namespace halftone::nn
