// The decoder and its first values. Its files are in llama_files.cpp.
#include <halftone/nn/models/llama.h>

#include <halftone/autograd/slots.h>
#include <halftone/core/error.h>
#include <halftone/core/factory.h>

namespace halftone::nn::models {

namespace {
constexpr double weight_std = 0.02;

Linear map_of(int64_t in, int64_t out, bool bias = false) {
  Linear layer(in, out, bias);
  init::normal(layer.weight, 0, weight_std);
  if (bias) init::zeros(layer.bias);
  return layer;
}
Embedding table_of(int64_t count, int64_t width) {
  Embedding table(count, width);
  init::normal(table.weight, 0, weight_std);
  return table;
}
Parameter matrices_of(int64_t count, int64_t rows, int64_t columns) {
  Parameter matrices(Shape{count, rows, columns});
  init::normal(matrices, 0, weight_std);
  return matrices;
}

LlamaOptions with_head_width(LlamaOptions options) {
  constexpr std::string_view name = "Llama";
  detail::require_positive(name, "layers", options.layers);
  detail::require_positive(name, "heads", options.heads);
  detail::require_positive(name, "key_heads", options.key_heads);
  detail::require_divisible(name, "heads", options.heads, options.key_heads);
  if (options.head_width == 0) {
    detail::require_divisible(name, "width", options.width, options.heads);
    options.head_width = options.width / options.heads;
  }
  detail::require_divisible(name, "the width of a head,", options.head_width, 2);
  if (options.window < 0 || options.unlimited_layers < 0 || options.experts < 0)
    fail<UsageError>(name, "window is ", options.window, ", unlimited_layers ",
                     options.unlimited_layers, ", experts ", options.experts, ". Use 0 or more.");
  if (options.experts > 0 &&
      (options.experts_per_token < 1 || options.experts_per_token > options.experts))
    fail<UsageError>(name, "experts_per_token is ", options.experts_per_token, " of ",
                     options.experts, " experts. Use 1 to ", options.experts, ".");
  return options;
}
}  // namespace

LlamaBlock::Attention::Attention(const LlamaOptions& given, int64_t layer)
    : options(given),
      window(layer < given.unlimited_layers ? 0 : given.window),
      q_proj(map_of(given.width, given.heads * given.head_width, given.qkv_bias)),
      k_proj(map_of(given.width, given.key_heads * given.head_width, given.qkv_bias)),
      v_proj(map_of(given.width, given.key_heads * given.head_width, given.qkv_bias)),
      o_proj(map_of(given.heads * given.head_width, given.width, given.output_bias)) {
  if (!given.qk_norm) return;
  q_norm.emplace(given.head_width, RmsNormOptions{.eps = given.norm_eps});
  k_norm.emplace(given.head_width, RmsNormOptions{.eps = given.norm_eps});
}
Tensor LlamaBlock::Attention::operator()(const Tensor& x, KeyValues* past,
                                         const detail::Reading& reading) const {
  const CallScope scope = call_scope();
  const int64_t n = x.shape()[0], l = x.shape()[1], e = options.head_width;
  const auto heads = [&](const Tensor& y, int64_t count) { return reshape(y, {n, l, count, e}); };
  Tensor q = heads(q_proj(x), options.heads), k = heads(k_proj(x), options.key_heads),
         v = transpose(heads(v_proj(x), options.key_heads), 1, 2);
  if (options.qk_norm) q = (*q_norm)(q), k = (*k_norm)(k);
  RopeOptions turn = options.rope;
  turn.position += reading.before;
  q = rope(transpose(q, 1, 2), turn), k = rope(transpose(k, 1, 2), turn);
  if (past) {
    k = detail::appended(past->keys, k, reading);
    v = detail::appended(past->values, v, reading);
  }
  AttentionOptions seen = detail::sees_what_is_before(reading.before, l, x.device(), window);
  seen.enable_gqa = true;
  const Tensor y = scaled_dot_product_attention(q, k, v, seen);
  return o_proj(reshape(transpose(y, 1, 2), {n, l, options.heads * e}));
}
void LlamaBlock::Attention::describe(Fields& field) {
  field("q_proj", q_proj), field("k_proj", k_proj), field("v_proj", v_proj);
  field("o_proj", o_proj);
  if (options.qk_norm) field("q_norm", *q_norm), field("k_norm", *k_norm);
}

LlamaBlock::Mlp::Mlp(const LlamaOptions& options)
    : gate_proj(map_of(options.width, options.hidden)),
      up_proj(map_of(options.width, options.hidden)),
      down_proj(map_of(options.hidden, options.width)) {}
Tensor LlamaBlock::Mlp::operator()(const Tensor& x) const {
  const CallScope scope = call_scope();
  return down_proj(swiglu(gate_proj(x), up_proj(x)));
}
void LlamaBlock::Mlp::describe(Fields& field) {
  field("gate_proj", gate_proj), field("up_proj", up_proj), field("down_proj", down_proj);
}

LlamaBlock::Experts::Experts(const LlamaOptions& options)
    : per_token(options.experts_per_token),
      normalized(options.normalized_experts),
      gate(options.width, options.experts),
      gate_up_proj(matrices_of(options.experts, 2 * options.hidden, options.width)),
      down_proj(matrices_of(options.experts, options.width, options.hidden)) {
  init::normal(gate.weight, 0, weight_std);
}
Tensor LlamaBlock::Experts::operator()(const Tensor& x_in, RoutedTokens* routed) const {
  const CallScope scope = call_scope();
  const int64_t width = x_in.size(-1), count = down_proj.size(0), rows = x_in.numel() / width;
  const Tensor x = reshape(x_in, {rows, width});
  const Tensor chances = softmax(gate(x), -1);
  const Sorted best = topk(chances, per_token);
  const Tensor weights = normalized ? best.values / sum(best.values, {-1}, true) : best.values;
  // One row for each token and each of its experts, in the order of the experts.
  const Tensor chosen = reshape(best.indices, {rows * per_token}), order = argsort(chosen);
  const Tensor of_token = floor_divide(order, per_token);
  const Tensor up_to = unsqueeze(chosen, 1) <= arange(count, i64, x.device());
  const Tensor ends = sum(up_to, {0});
  const Tensor up = grouped_linear(index_select(x, 0, of_token), gate_up_proj, ends);
  const Tensor down = grouped_linear(swiglu(up), down_proj, ends);
  const Tensor share = index_select(reshape(weights, {rows * per_token, 1}), 0, order);
  const Tensor weighted = down * share;
  const Tensor none = zeros({rows, width}, weighted.dtype(), x.device());
  const Tensor y = index_add(none, 0, of_token, weighted);
  if (routed) {
    const Tensor chosen_by = sum(unsqueeze(chosen, 1) == arange(count, i64, x.device()), {0});
    routed->shares.push_back(cast(chosen_by, chances.dtype()) / double(std::max<int64_t>(rows, 1)));
    routed->chances.push_back(mean(chances, {0}));
  }
  return reshape(cast(y, x.dtype()), x_in.shape());
}
void LlamaBlock::Experts::describe(Fields& field) {
  field("gate", gate);
  field("experts.gate_up_proj", gate_up_proj), field("experts.down_proj", down_proj);
}

LlamaBlock::LlamaBlock(const LlamaOptions& options, int64_t layer)
    : input_layernorm(options.width, {.eps = options.norm_eps}),
      post_attention_layernorm(options.width, {.eps = options.norm_eps}),
      self_attn(options, layer) {
  if (options.experts > 0) experts.emplace(options);
  else mlp.emplace(options);
}
Tensor LlamaBlock::operator()(const Tensor& x, KeyValues* past, const detail::Reading& reading,
                              RoutedTokens* routed) const {
  const CallScope scope = call_scope();
  const auto [y, inner] =
      post_attention_layernorm.of_sum(x, self_attn(input_layernorm(x), past, reading));
  return y + (experts ? (*experts)(inner, routed) : (*mlp)(inner));
}
void LlamaBlock::describe(Fields& field) {
  field("self_attn", self_attn);
  if (experts) field("mlp", *experts);
  else field("mlp", *mlp);
  field("input_layernorm", input_layernorm);
  field("post_attention_layernorm", post_attention_layernorm);
}

Llama::Llama(const LlamaOptions& given)
    : options(with_head_width(given)),
      embed_tokens(table_of(options.vocabulary, options.width)),
      norm(options.width, {.eps = options.norm_eps}),
      head_(options.tied ? embed_tokens.weight : map_of(options.width, options.vocabulary).weight) {
  for (int64_t i = 0; i < options.layers; ++i) layers.emplace_back(options, i);
}

Tensor Llama::computed(const Tensor& tokens, KeyValueCache* cache, const detail::Reading& reading,
                       RoutedTokens* routed) const {
  Tensor x = embed_tokens(tokens);
  for (std::size_t i = 0; i < layers.size(); ++i)
    x = layers[i](x, cache ? &cache->layers[i] : nullptr, reading, routed);
  x = norm(x);
  const CallScope head = call_scope("lm_head");
  return linear(x, head_);
}

Tensor Llama::forward(const Tensor& tokens) const {
  detail::check_tokens("Llama", tokens, 0, options.context);
  return computed(tokens, nullptr, {}, nullptr);
}

Tensor Llama::operator()(const Tensor& tokens, KeyValueCache& cache) const {
  const detail::Reading reading = detail::prepared(
      "Llama", cache, tokens, layers.size(),
      {1, options.key_heads, options.context, options.head_width}, embed_tokens.weight.device());
  const CallScope scope = call_scope();
  const Tensor result = computed(tokens, &cache, reading, nullptr);
  cache.length += tokens.shape()[1];  // only after everything has succeeded
  return result;
}

Llama::Balanced Llama::with_balance(const Tensor& tokens) const {
  if (options.experts == 0)
    fail<UsageError>("Llama", "the model has 0 experts to balance. Call the model itself.");
  detail::check_tokens("Llama", tokens, 0, options.context);
  const CallScope scope = call_scope();
  RoutedTokens routed;
  const Tensor logits = computed(tokens, nullptr, {}, &routed);
  const CasterScope exact(nullptr);
  const auto averaged = [](const std::vector<Tensor>& all) { return mean(stack(all, 0), {0}); };
  const Tensor balance =
      sum(averaged(routed.shares) * averaged(routed.chances)) * double(options.experts);
  return {logits, balance};
}

void Llama::describe(Fields& field) {
  field("model.embed_tokens", embed_tokens);
  for (std::size_t i = 0; i < layers.size(); ++i)
    field("model.layers." + std::to_string(i), layers[i]);
  field("model.norm", norm);
  field("lm_head.weight", head_);
}

}  // namespace halftone::nn::models
