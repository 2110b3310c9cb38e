// A Gpt that reads a text token by token: it stores the keys and values of the tokens read.
#include <halftone/nn/models/gpt.h>

#include <halftone/autograd/slots.h>
#include <halftone/core/backend.h>
#include <halftone/core/factory.h>

namespace halftone::nn::models {

namespace {
/// Appends [n, heads, l, e] to `kept`; returns all of it. `kept` has room for the context.
Tensor joined(Tensor& kept, const Tensor& x, int64_t length, int64_t context) {
  if (!kept.defined()) {
    Shape shape = x.shape();
    shape[2] = context;
    kept = empty(shape, x.dtype(), x.device());
  }
  const int64_t added = x.shape()[2];
  copy_into(views::slice(kept, 2, length, added), x);
  return views::slice(kept, 2, 0, length + added);
}

/// The mask of new tokens: each sees all tokens before it, and itself.
AttentionOptions sees_what_is_before(int64_t before, int64_t count, Device device) {
  if (before == 0) return {.causal = true};
  if (count == 1) return {};
  const Tensor seen = reshape(arange(before + count, i64, device), {1, before + count});
  const Tensor own = reshape(arange(count, i64, device), {count, 1});
  return {.mask = seen <= own + double(before)};
}
}  // namespace

Tensor GptBlock::Attention::operator()(const Tensor& x, KeyValues& past, int64_t before) const {
  const CallScope scope = call_scope();
  const int64_t n = x.shape()[0], l = x.shape()[1], width = x.shape()[2];
  const Tensor qkv = reshape(c_attn(x), {n, l, 3, heads, width / heads});
  const auto part = [&](int i) { return transpose(select(qkv, 2, i), 1, 2); };
  const Tensor keys = joined(past.keys, part(1), before, context);
  const Tensor values = joined(past.values, part(2), before, context);
  AttentionOptions options = sees_what_is_before(before, l, x.device());
  options.dropout = training ? dropout : 0;
  const Tensor y = scaled_dot_product_attention(part(0), keys, values, options);
  return halftone::dropout(c_proj(reshape(transpose(y, 1, 2), {n, l, width})), dropout, training);
}

Tensor GptBlock::operator()(const Tensor& x, KeyValues& past, int64_t before) const {
  const CallScope scope = call_scope();
  const Tensor y = x + attn(ln_1(x), past, before);
  return y + mlp(ln_2(y));
}

/// Users can fill a cache by hand, and kernels rely on shapes.
void Gpt::check(const KeyValueCache& cache, int64_t texts) const {
  if (cache.length == 0 && cache.layers.empty()) return;
  if (cache.length < 0 || cache.length > options.context)
    fail<UsageError>("Gpt", "the cache has read ", cache.length, " tokens, the context is ",
                     options.context, ". Begin with an empty one.");
  if (cache.layers.size() != h.size())
    fail<UsageError>("Gpt", "the cache is of a model with ", cache.layers.size(),
                     " layers, this one has ", h.size(), ". Begin with an empty one.");
  const Shape expected{texts, options.heads, options.context, options.width / options.heads};
  for (const KeyValues& layer : cache.layers)
    for (const Tensor* x : {&layer.keys, &layer.values}) {
      if (!x->defined() && cache.length == 0) continue;
      if (!x->defined() || x->shape() != expected || !is_floating(x->dtype()) ||
          x->device() != wte.weight.device())
        fail<ShapeError>("Gpt", "the cache holds ", described(*x), ", these tokens need ", expected,
                         " on ", wte.weight.device(),
                         ". Go on with as many texts, or begin with an empty cache.");
    }
}

Tensor Gpt::operator()(const Tensor& tokens, KeyValueCache& cache) const {
  if (grad_enabled())
    fail<UsageError>("Gpt",
                     "a cache of keys and values has no gradients. Read with it under "
                     "NoGrad, or without it.");
  if (tokens.defined() && tokens.rank() == 2) check(cache, tokens.shape()[0]);
  const CallScope scope = call_scope();
  Tensor x = embedded(tokens, cache.length);
  cache.layers.resize(h.size());
  for (std::size_t i = 0; i < h.size(); ++i) x = h[i](x, cache.layers[i], cache.length);
  const Tensor result = logits(x);
  cache.length += tokens.shape()[1];  // only after everything has succeeded
  return result;
}

}  // namespace halftone::nn::models
