// The decoder, its first values (those of GPT-2), and weights in other file formats.
#include <halftone/nn/models/gpt.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include <nlohmann/json.hpp>

#include <halftone/autograd/slots.h>
#include <halftone/core/backend.h>
#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/core/files.h>
#include <halftone/nn/layers.h>

namespace halftone::nn::models {

namespace {
constexpr double first_std = 0.02;

Linear small_linear(int64_t in, int64_t out, double std = first_std) {
  Linear layer(in, out);
  init::normal(layer.weight, 0, std), init::zeros(layer.bias);
  return layer;
}
/// The more layers add to the residual stream, the smaller their outputs start.
Linear residual_linear(int64_t in, const GptOptions& options) {
  return small_linear(in, options.width, first_std / std::sqrt(2.0 * double(options.layers)));
}
Embedding small_embedding(int64_t count, int64_t width) {
  Embedding table(count, width);
  init::normal(table.weight, 0, first_std);
  return table;
}
}  // namespace

GptBlock::Attention::Attention(const GptOptions& options)
    : c_attn(small_linear(options.width, 3 * options.width)),
      c_proj(residual_linear(options.width, options)),
      heads(options.heads),
      dropout(options.dropout) {
  detail::require_divisible("Gpt", "width", options.width, options.heads);
}
Tensor GptBlock::Attention::forward(const Tensor& x) const {
  const AttentionOptions causal{.dropout = training ? dropout : 0, .causal = true};
  return halftone::dropout(c_proj(self_attention(c_attn(x), heads, causal)), dropout, training);
}
void GptBlock::Attention::describe(Fields& field) {
  field("c_attn", c_attn), field("c_proj", c_proj);
}

GptBlock::Mlp::Mlp(const GptOptions& options)
    : c_fc(small_linear(options.width, 4 * options.width)),
      c_proj(residual_linear(4 * options.width, options)),
      dropout(options.dropout) {}
Tensor GptBlock::Mlp::forward(const Tensor& x) const {
  return halftone::dropout(c_proj(gelu(c_fc(x))), dropout, training);
}
void GptBlock::Mlp::describe(Fields& field) { field("c_fc", c_fc), field("c_proj", c_proj); }

GptBlock::GptBlock(const GptOptions& options)
    : ln_1(options.width), ln_2(options.width), attn(options), mlp(options) {}
Tensor GptBlock::forward(const Tensor& x) const {
  const Tensor y = x + attn(ln_1(x));
  return y + mlp(ln_2(y));
}
void GptBlock::describe(Fields& field) {
  field("ln_1", ln_1), field("attn", attn), field("ln_2", ln_2), field("mlp", mlp);
}

Gpt::Gpt(const GptOptions& given)
    : options(given),
      wte(small_embedding(given.vocabulary, given.width)),
      wpe(small_embedding(given.context, given.width)),
      drop(given.dropout),
      ln_f(given.width),
      head_(wte.weight) {
  detail::require_positive("Gpt", "layers", options.layers);
  for (int64_t i = 0; i < options.layers; ++i) h.emplace_back(options);
}

Tensor Gpt::embedded(const Tensor& tokens, int64_t position) const {
  return drop(wte(tokens) + slice(wpe.weight, 0, position, position + tokens.shape()[1]));
}

Tensor Gpt::logits(const Tensor& x) const {
  const Tensor last = ln_f(x);
  const CallScope head = call_scope("lm_head");
  return linear(last, head_);
}

Tensor Gpt::forward(const Tensor& tokens) const {
  detail::check_tokens("Gpt", tokens, 0, options.context);
  Tensor x = embedded(tokens, 0);
  for (const GptBlock& block : h) x = block(x);
  return logits(x);
}

void Gpt::describe(Fields& field) {
  field("transformer.wte", wte), field("transformer.wpe", wpe), field("transformer.drop", drop);
  for (std::size_t i = 0; i < h.size(); ++i) field("transformer.h." + std::to_string(i), h[i]);
  field("transformer.ln_f", ln_f);
  field("lm_head.weight", head_);
}

namespace {
constexpr std::array<std::string_view, 3> linear_maps{"c_attn.weight", "c_proj.weight",
                                                      "c_fc.weight"};

constexpr std::array<std::string_view, 2> masks{".attn.bias", ".attn.masked_bias"};

bool ends_with_any(std::string_view name, std::span<const std::string_view> endings) {
  return std::ranges::any_of(endings, [&](std::string_view end) { return name.ends_with(end); });
}
}  // namespace

LoadReport load_gpt2(Gpt& model, const std::filesystem::path& path, LoadOptions options) {
  const MemoryScope scope(MemoryUse::workspace);
  SafetensorsFile given = load_safetensors(path);
  detail::strip_prefix(given, options.strip_prefix);
  const NamedTensors& file = given.tensors;
  SafetensorsFile renamed;
  NamedTensors& state = renamed.tensors;
  constexpr std::string_view whole_prefix = "transformer.";
  const auto is_whole = [&](const std::string& name) {
    return name.starts_with(whole_prefix) || name.starts_with("lm_head.");
  };
  const auto whole_name = [&](const std::string& name) {
    return is_whole(name) ? name : std::string(whole_prefix) + name;
  };
  for (const auto& [name, what] : given.unsupported)
    if (!ends_with_any(name, masks)) renamed.unsupported.emplace(whole_name(name), what);
  // The shape of a block's map to queries, keys and values shows the layout.
  bool inputs_first = false;
  for (const auto& [name, x] : file)
    if (name.ends_with("attn.c_attn.weight") && x.rank() == 2)
      inputs_first = x.shape()[1] == 3 * x.shape()[0];
  for (const auto& [name, x] : file) {
    if (ends_with_any(name, masks)) continue;
    const bool map = ends_with_any(name, linear_maps);
    const bool transposed = map && inputs_first && x.rank() == 2;
    const bool first =
        state.emplace(whole_name(name), transposed ? views::transpose(x, 0, 1) : x).second;
    if (!first)
      fail<FormatError>("load_gpt2", path.string(), " has ", in_quotes(name),
                        " with \"transformer.\" before it and without. Remove one of the two.");
  }
  const auto embedding = state.find("transformer.wte.weight");
  if (embedding != state.end()) state.emplace("lm_head.weight", embedding->second);
  // Errors have the file's names.
  const bool any_whole = std::ranges::any_of(
      file, [&](const auto& one) { return one.first.starts_with(whole_prefix); });
  return detail::load_file(model, std::move(renamed), {.strict = options.strict}, path,
                           any_whole ? std::string_view() : whole_prefix);
}

namespace {
std::string config_of(const Gpt& model) {
  const GptOptions& o = model.options;
  const DType dtype = model.wte.weight.dtype();
  // GPT-2's <|endoftext|>, the default of programs that read the file.
  constexpr int64_t end_of_text = 50256;
  const nlohmann::json end =
      o.vocabulary > end_of_text ? nlohmann::json(end_of_text) : nlohmann::json();
  const nlohmann::json config{{"architectures", {"GPT2LMHeadModel"}},
                              {"model_type", "gpt2"},
                              {"vocab_size", o.vocabulary},
                              {"n_positions", o.context},
                              {"n_ctx", o.context},
                              {"n_embd", o.width},
                              {"n_layer", o.layers},
                              {"n_head", o.heads},
                              {"activation_function", "gelu_new"},
                              {"layer_norm_epsilon", model.ln_f.eps},
                              {"attn_pdrop", o.dropout},
                              {"embd_pdrop", o.dropout},
                              {"resid_pdrop", o.dropout},
                              {"bos_token_id", end},
                              {"eos_token_id", end},
                              {"tie_word_embeddings", true},
                              {"torch_dtype", dtype == bf16  ? "bfloat16"
                                              : dtype == f16 ? "float16"
                                              : dtype == f64 ? "float64"
                                                             : "float32"}};
  return config.dump(2) + '\n';
}
}  // namespace

void save_gpt2(const Gpt& model, const std::filesystem::path& path) {
  const MemoryScope scope(MemoryUse::workspace);
  NamedTensors file;
  for (const auto& [name, x] : state_dict(model)) {
    if (name == "lm_head.weight") continue;
    file[name] = ends_with_any(name, linear_maps) ? views::transpose(x, 0, 1) : x;
  }
  // Programs that read the file expect this key.
  const std::map<std::string, std::string> metadata{{"format", "pt"}};
  if (path.extension() == ".safetensors") return save_safetensors(path, file, metadata);
  files::make_directories("save_gpt2", path);
  save_safetensors(path / "model.safetensors", file, metadata);
  files::replace("save_gpt2", path / "config.json", config_of(model));
}

// A Gpt that reads a text token by token: it stores the keys and values of the tokens read.

Tensor GptBlock::Attention::operator()(const Tensor& x, KeyValues& past,
                                       const detail::Reading& reading) const {
  const auto call = [&] {
    const int64_t n = x.shape()[0], l = x.shape()[1], width = x.shape()[2];
    const Tensor qkv = reshape(c_attn(x), {n, l, 3, heads, width / heads});
    const auto part = [&](int i) { return transpose(select(qkv, 2, i), 1, 2); };
    const Tensor keys = detail::appended(past.keys, part(1), reading);
    const Tensor values = detail::appended(past.values, part(2), reading);
    AttentionOptions options = detail::sees_what_is_before(reading.before, l, x.device());
    options.dropout = training ? dropout : 0;
    const Tensor y = scaled_dot_product_attention(part(0), keys, values, options);
    return halftone::dropout(c_proj(reshape(transpose(y, 1, 2), {n, l, width})), dropout, training);
  };
  return called(call, x);
}

Tensor GptBlock::operator()(const Tensor& x, KeyValues& past,
                            const detail::Reading& reading) const {
  const auto call = [&] {
    const Tensor y = x + attn(ln_1(x), past, reading);
    return y + mlp(ln_2(y));
  };
  return called(call, x);
}

Tensor Gpt::operator()(const Tensor& tokens, KeyValueCache& cache) const {
  const detail::Reading reading = detail::prepared(
      "Gpt", cache, tokens, h.size(),
      {1, options.heads, options.context, options.width / options.heads}, wte.weight.device());
  const auto call = [&] {
    Tensor x = embedded(tokens, reading.before);
    for (std::size_t i = 0; i < h.size(); ++i) x = h[i](x, cache.layers[i], reading);
    const Tensor result = logits(x);
    cache.length += tokens.shape()[1];  // only after everything has succeeded
    return result;
  };
  return called(call, tokens);
}

}  // namespace halftone::nn::models
