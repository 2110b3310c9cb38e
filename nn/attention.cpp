// Allocation, first values, and the two paths: packed if queries, keys and values come from one
// tensor.
#include <halftone/nn/attention.h>

#include <halftone/nn/arguments.h>
#include <halftone/nn/init.h>

namespace halftone::nn {

MultiheadAttention::MultiheadAttention(int64_t width, int64_t head_count,
                                       MultiheadAttentionOptions options)
    : out_proj(width, width, {.bias = options.bias}), heads(head_count), dropout(options.dropout) {
  detail::require_positive("MultiheadAttention", "heads", heads);
  detail::require_divisible("MultiheadAttention", "width", width, heads);
  in_proj_weight = Parameter(Shape{3 * width, width});
  init::xavier_uniform(in_proj_weight);
  if (!options.bias) return;
  in_proj_bias = Parameter(Shape{3 * width});
  init::zeros(in_proj_bias), init::zeros(out_proj.bias);
}

AttentionOptions MultiheadAttention::with_dropout(const AttentionOptions& options) const {
  AttentionOptions result = options;
  result.dropout = training ? dropout : 0;
  return result;
}

Tensor MultiheadAttention::operator()(const Tensor& x, const AttentionOptions& options) const {
  const CallScope scope = call_scope();
  const Tensor qkv = linear(x, in_proj_weight, in_proj_bias);
  return out_proj(self_attention(qkv, heads, with_dropout(options)));
}

Tensor MultiheadAttention::operator()(const Tensor& query, const Tensor& key, const Tensor& value,
                                      const AttentionOptions& options) const {
  const CallScope scope = call_scope();
  const int64_t width = in_proj_weight.shape()[1];
  /// Maps x, [n, l, width], by part 0, 1 or 2, and returns it as [n, heads, l, width / heads].
  const auto mapped = [&](const Tensor& x, int part) {
    const auto of = [&](const Tensor& all) {
      return all.defined() ? slice(all, 0, part * width, (part + 1) * width) : Tensor{};
    };
    const Tensor y = linear(x, of(in_proj_weight), of(in_proj_bias));
    return transpose(reshape(y, {x.size(0), x.size(1), heads, width / heads}), 1, 2);
  };
  const Tensor y = scaled_dot_product_attention(mapped(query, 0), mapped(key, 1), mapped(value, 2),
                                                with_dropout(options));
  return out_proj(reshape(transpose(y, 1, 2), {query.size(0), query.size(1), width}));
}

void MultiheadAttention::describe(Fields& field) {
  field("in_proj_weight", in_proj_weight), field("in_proj_bias", in_proj_bias);
  field("out_proj", out_proj);
}

}  // namespace halftone::nn
