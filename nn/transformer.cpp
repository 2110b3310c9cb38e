// Transformer encoders: the order of norms, sums and dropouts.
#include <halftone/nn/transformer.h>

#include <halftone/core/error.h>

namespace halftone::nn {

TransformerEncoderLayer::TransformerEncoderLayer(int64_t width, int64_t heads,
                                                 TransformerEncoderLayerOptions o)
    : self_attn(width, heads, {.bias = o.bias, .dropout = o.dropout}),
      linear1(width, o.dim_feedforward, {.bias = o.bias}),
      linear2(o.dim_feedforward, width, {.bias = o.bias}),
      norm1(width, {.eps = o.layer_norm_eps, .bias = o.bias}),
      norm2(width, {.eps = o.layer_norm_eps, .bias = o.bias}),
      dropout(o.dropout),
      dropout1(o.dropout),
      dropout2(o.dropout),
      uses_gelu(o.activation == "gelu"),
      norm_first(o.norm_first) {
  if (!uses_gelu && o.activation != "relu")
    fail<UsageError>("TransformerEncoderLayer", "activation is \"", o.activation,
                     "\". Use \"relu\" or \"gelu\".");
}

Tensor TransformerEncoderLayer::encoded(const Tensor& x, const AttentionOptions& options,
                                        const Tensor& padding) const {
  const auto attention = [&](const Tensor& y) { return dropout1(self_attn(y, options, padding)); };
  const auto feedforward = [&](const Tensor& y) {
    const Tensor inner = linear1(y);
    return dropout2(linear2(dropout(uses_gelu ? gelu_erf(inner) : relu(inner))));
  };
  if (norm_first) {
    const Tensor y = x + attention(norm1(x));
    return y + feedforward(norm2(y));
  }
  const Tensor y = norm1(x + attention(x));
  return norm2(y + feedforward(y));
}

Tensor TransformerEncoderLayer::operator()(const Tensor& x, const AttentionOptions& options,
                                           const Tensor& key_padding_mask) const {
  return called([&] { return encoded(x, options, key_padding_mask); }, x);
}

void TransformerEncoderLayer::describe(Fields& field) {
  field("self_attn", self_attn), field("linear1", linear1), field("dropout", dropout);
  field("linear2", linear2), field("norm1", norm1), field("norm2", norm2);
  field("dropout1", dropout1), field("dropout2", dropout2);
}

TransformerEncoder::TransformerEncoder(int64_t count, int64_t width, int64_t heads,
                                       TransformerEncoderLayerOptions options, bool with_norm) {
  detail::require_positive("TransformerEncoder", "the number of layers", count);
  for (int64_t i = 0; i < count; ++i) layers.add(TransformerEncoderLayer(width, heads, options));
  if (with_norm) norm.emplace(width, LayerNormOptions{.eps = options.layer_norm_eps});
}

Tensor TransformerEncoder::encoded(const Tensor& x, const AttentionOptions& options,
                                   const Tensor& padding) const {
  Tensor y = x;
  for (const TransformerEncoderLayer& layer : layers) y = layer(y, options, padding);
  return norm ? (*norm)(y) : y;
}

Tensor TransformerEncoder::operator()(const Tensor& x, const AttentionOptions& options,
                                      const Tensor& key_padding_mask) const {
  return called([&] { return encoded(x, options, key_padding_mask); }, x);
}

void TransformerEncoder::describe(Fields& field) {
  field("layers", layers);
  if (norm) field("norm", *norm);
}

}  // namespace halftone::nn
