// The decoder, its first values and its files.
#include <halftone/nn/models/llama.h>

#include <algorithm>
#include <array>
#include <set>
#include <span>

#include <nlohmann/json.hpp>

#include <halftone/autograd/slots.h>
#include <halftone/core/backend.h>
#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/core/files.h>
#include <halftone/core/json_value.h>

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
Tensor LlamaBlock::Attention::forward(const Tensor& x, KeyValues* past,
                                      const detail::Reading& reading) const {
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
Tensor LlamaBlock::Mlp::forward(const Tensor& x) const {
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
Tensor LlamaBlock::Experts::forward(const Tensor& x_in, RoutedTokens* routed) const {
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
Tensor LlamaBlock::forward(const Tensor& x, KeyValues* past, const detail::Reading& reading,
                           RoutedTokens* routed) const {
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
  const auto call = [&] {
    const Tensor result = computed(tokens, &cache, reading, nullptr);
    cache.length += tokens.shape()[1];  // only after everything has succeeded
    return result;
  };
  return called(call, tokens);
}

Llama::Balanced Llama::with_balance(const Tensor& tokens) const {
  if (options.experts == 0)
    fail<UsageError>("Llama", "the model has 0 experts to balance. Call the model itself.");
  detail::check_tokens("Llama", tokens, 0, options.context);
  const auto call = [&]() -> Balanced {
    RoutedTokens routed;
    const Tensor logits = computed(tokens, nullptr, {}, &routed);
    const CasterScope exact(nullptr);
    const auto averaged = [](const std::vector<Tensor>& all) { return mean(stack(all, 0), {0}); };
    const Tensor balance =
        sum(averaged(routed.shares) * averaged(routed.chances)) * double(options.experts);
    return {logits, balance};
  };
  return called(call, tokens);
}

void Llama::describe(Fields& field) {
  field("model.embed_tokens", embed_tokens);
  for (std::size_t i = 0; i < layers.size(); ++i)
    field("model.layers." + std::to_string(i), layers[i]);
  field("model.norm", norm);
  field("lm_head.weight", head_);
}

// Hugging Face's config.json, and .safetensors in one file or several.

namespace {
namespace fs = std::filesystem;

/// The properties in which the model types of Hugging Face differ.
struct LlamaType {
  std::string_view name, architecture;
  bool bias, qk_norm;
  /// The module of the experts, and the parts of an expert: gate, up, down. Empty: none.
  std::string_view experts{};
  std::array<std::string_view, 3> parts{};
};
constexpr std::array<LlamaType, 6> llama_types{
    {{"llama", "LlamaForCausalLM", false, false},
     {"mistral", "MistralForCausalLM", false, false},
     {"qwen2", "Qwen2ForCausalLM", true, false},
     {"qwen3", "Qwen3ForCausalLM", false, true},
     {"mixtral", "MixtralForCausalLM", false, false, "block_sparse_moe", {"w1", "w3", "w2"}},
     {"qwen3_moe",
      "Qwen3MoeForCausalLM",
      false,
      true,
      "mlp",
      {"gate_proj", "up_proj", "down_proj"}}}};

/// The entries of config.json, with their places for errors.
struct Config {
  const JsonValue& json;

  std::optional<JsonValue> find(std::string_view key) const {
    const std::optional<JsonValue> found = json.find(key);
    return found && !found->is_null() ? found : std::nullopt;
  }
  int64_t count(std::string_view key, std::optional<int64_t> otherwise = {},
                int64_t least = 1) const {
    if (const auto found = find(key)) return found->integer(least, int64_t(1) << 40);
    if (!otherwise) json.refuse("the entry \"", key, "\" is missing.");
    return *otherwise;
  }
  double number(std::string_view key, double otherwise) const {
    const auto found = find(key);
    return found ? found->number() : otherwise;
  }
  bool flag(std::string_view key, bool otherwise = false) const {
    const auto found = find(key);
    return found ? found->boolean() : otherwise;
  }
  std::string text(std::string_view key, std::string otherwise) const {
    const auto found = find(key);
    return found ? found->text() : otherwise;
  }
  /// Throws UnsupportedError that names the entry and what it says.
  [[noreturn]] void refuse(std::string_view key, std::string_view known) const {
    const auto found = find(key);
    fail<UnsupportedError>("load_llama", "config.json, ", json.pointer(), "/", key, ": ",
                           found ? printable(found->json().dump()) : "absent",
                           " is a configuration that this model cannot be. It can be ", known, ".");
  }
  void require(bool holds, std::string_view key, std::string_view known) const {
    if (!holds) refuse(key, known);
  }
};

const LlamaType& type_in(const Config& config) {
  const std::string name = config.text("model_type", "");
  for (const LlamaType& type : llama_types)
    if (type.name == name) return type;
  config.refuse("model_type", "llama, mistral, qwen2, qwen3, mixtral or qwen3_moe");
}

/// Older files have rope_theta and rope_scaling, newer ones rope_parameters with both.
RopeOptions rope_in(const Config& config) {
  RopeOptions rope{.theta = config.number("rope_theta", 10000)};
  config.require(config.number("partial_rotary_factor", 1) == 1, "partial_rotary_factor", "1");
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const auto found = config.find(key);
    if (!found) continue;
    const Config scaling{*found};
    rope.theta = scaling.number("rope_theta", rope.theta);
    const char* const name = scaling.find("rope_type") ? "rope_type" : "type";
    const std::string type = scaling.text(name, "default");
    scaling.require(scaling.number("partial_rotary_factor", 1) == 1, "partial_rotary_factor", "1");
    if (type == "default") continue;
    scaling.require(type == "llama3", name, "\"default\" or \"llama3\"");
    rope.scaling = {.factor = scaling.number("factor", 1),
                    .low_frequency_factor = scaling.number("low_freq_factor", 1),
                    .high_frequency_factor = scaling.number("high_freq_factor", 4),
                    .original_context = scaling.count("original_max_position_embeddings", 8192)};
  }
  return rope;
}

void read_window(const Config& config, const LlamaType& type, LlamaOptions& options) {
  const bool qwen = type.name.starts_with("qwen");
  if (type.name == "llama" || (qwen && !config.flag("use_sliding_window"))) return;
  options.window = config.count("sliding_window", 0, 0);
  if (options.window == 0 || !qwen) return;
  options.unlimited_layers = std::min(config.count("max_window_layers", 28, 0), options.layers);
  const auto kinds = config.find("layer_types");
  if (!kinds) return;
  int64_t layer = 0;
  for (const JsonValue& kind : kinds->elements()) {
    const bool all = layer++ < options.unlimited_layers;
    config.require(kind.text() == (all ? "full_attention" : "sliding_attention"), "layer_types",
                   "\"full_attention\" for max_window_layers layers, then \"sliding_attention\"");
  }
}

void read_experts(const Config& config, const LlamaType& type, LlamaOptions& options) {
  if (type.experts.empty()) return;
  const bool mixtral = type.name == "mixtral";
  // Qwen's older files have the second name.
  const bool local = mixtral || config.find("num_local_experts");
  options.experts = config.count(local ? "num_local_experts" : "num_experts", 8);
  options.experts_per_token = config.count("num_experts_per_tok", 2);
  if (mixtral) return;
  options.hidden = config.count("moe_intermediate_size");
  options.normalized_experts = config.flag("norm_topk_prob");
  config.require(config.count("decoder_sparse_step", 1, 0) == 1, "decoder_sparse_step", "1");
  const auto dense = config.find("mlp_only_layers");
  config.require(!dense || dense->elements().empty(), "mlp_only_layers", "[]");
}

LlamaOptions options_in(const Config& config, const LlamaType& type) {
  const int64_t heads = config.count("num_attention_heads");
  LlamaOptions options{.vocabulary = config.count("vocab_size"),
                       .context = config.count("max_position_embeddings", 2048),
                       .layers = config.count("num_hidden_layers"),
                       .width = config.count("hidden_size"),
                       .heads = heads,
                       .key_heads = config.count("num_key_value_heads", heads),
                       .head_width = config.count("head_dim", 0, 0),
                       .hidden = config.count("intermediate_size"),
                       .norm_eps = config.number("rms_norm_eps", 1e-6),
                       .rope = rope_in(config),
                       .qkv_bias = type.bias || config.flag("attention_bias"),
                       .output_bias = config.flag("attention_bias"),
                       .qk_norm = type.qk_norm,
                       .tied = config.flag("tie_word_embeddings")};
  config.require(config.text("hidden_act", "silu") == "silu", "hidden_act", "\"silu\"");
  config.require(!config.flag("mlp_bias"), "mlp_bias", "false");
  config.require(config.number("attention_dropout", 0) == 0, "attention_dropout", "0");
  config.require(!config.find("quantization_config"), "quantization_config", "absent");
  read_window(config, type, options);
  read_experts(config, type, options);
  return options;
}

Tensor rows_from(const Tensor& x, int64_t begin, int64_t count) {
  return views::slice(x, 0, begin, count);
}

/// Returns the model's tensors under the names of a type's files; those of an expert are parts of
/// the tensors of all experts.
NamedTensors tensors_of(const Llama& model, const LlamaType& type) {
  NamedTensors named;
  for (const auto& [name, x] : state_dict(model)) {
    if (name == "lm_head.weight" && model.options.tied) continue;
    const std::size_t mlp = name.find(".mlp.");
    if (type.experts.empty() || mlp == std::string::npos) {
      named[name] = x;
      continue;
    }
    const std::string module = name.substr(0, mlp + 1) + std::string(type.experts);
    if (name.ends_with(".gate.weight")) named[module + ".gate.weight"] = x;
    for (int64_t i = 0; x.rank() == 3 && i < x.size(0); ++i) {
      const Tensor matrix = views::slice(x, 0, i, 1);
      const Tensor expert =
          matrix.view_as({x.size(1), x.size(2)}, {x.strides()[1], x.strides()[2]}, matrix.offset());
      const auto file = [&](int part) {
        return module + ".experts." + std::to_string(i) + "." +
               std::string(type.parts[std::size_t(part)]) + ".weight";
      };
      const int64_t half = x.size(1) / 2;
      if (name.ends_with("down_proj")) named[file(2)] = expert;
      else
        named[file(0)] = rows_from(expert, 0, half), named[file(1)] = rows_from(expert, half, half);
    }
  }
  return named;
}

/// Returns the files that hold the weights, as an index names them.
std::vector<std::string> weight_files(const fs::path& directory) {
  const fs::path index = directory / "model.safetensors.index.json";
  std::error_code error;
  if (!fs::exists(index, error)) return {"model.safetensors"};
  constexpr std::size_t most = 256 << 20;
  const auto json =
      nlohmann::json::parse(files::read_text("load_llama", index, most), nullptr, false);
  std::set<std::string> names;
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object())
    fail<FormatError>("load_llama", index.string(),
                      " has no \"weight_map\" from tensors to files. Download it again.");
  for (const auto& [tensor, file] : json["weight_map"].items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    if (name.empty() || name.find_first_of(std::string("/\\\0", 3)) != std::string::npos)
      fail<FormatError>("load_llama", index.string(), ": ", in_quotes(tensor), " is in ",
                        printable(file.dump()), ". A file of the same directory is needed.");
    names.insert(name);
  }
  return {names.begin(), names.end()};
}

/// Copies a model's tensors out of files, each when it is met; then all must have been met.
class Loading {
 public:
  Loading(const Llama& model, const LlamaType& type, const fs::path& directory)
      : model_(model), directory_(directory), missing_(tensors_of(model, type)) {}

  void read(const SafetensorsFile& file) {
    file.require_all();
    for (const auto& [name, x] : file.tensors) {
      if (name.ends_with("rotary_emb.inv_freq")) continue;  // older files store the frequencies
      const auto found = missing_.find(name);
      if (name == "lm_head.weight" && model_.options.tied) head_ = x;
      else if (found == missing_.end()) unexpected_.push_back(name);
      else copy(name, x, found->second), missing_.erase(found);
    }
  }
  void finish() const {
    if (!missing_.empty() || !unexpected_.empty()) {
      std::vector<std::string> missing;
      for (const auto& [name, x] : missing_) missing.push_back(name);
      fail<UsageError>("load_llama", directory_.string(),
                       " does not fit its config.json:", listed(" Missing: ", missing),
                       listed(" Unexpected: ", unexpected_),
                       " Save the model again, or correct config.json.");
    }
    if (head_.defined() && !same_values(head_, model_.embed_tokens.weight))
      fail<UsageError>("load_llama", directory_.string(),
                       " has an lm_head.weight that is not the embedding, and config.json ties "
                       "them. Write \"tie_word_embeddings\": false.");
  }

 private:
  void copy(const std::string& name, const Tensor& x, const Tensor& to) const {
    if (x.shape() != to.shape())
      fail<ShapeError>("load_llama", directory_.string(), ": ", in_quotes(name), " is ",
                       described(x), ", by config.json it is ", to.shape(),
                       ". Correct config.json, or save the model again.");
    copy_into(to, x);
  }
  static std::string listed(const std::string& before, const std::vector<std::string>& names) {
    constexpr std::size_t most = 10;
    std::string text;
    for (std::size_t i = 0; i < std::min(names.size(), most); ++i)
      text += (i == 0 ? before : ", ") + printable(names[i]);
    if (names.size() > most) text += " and " + std::to_string(names.size() - most) + " more";
    return text.empty() ? text : text + ".";
  }

  const Llama& model_;
  const fs::path& directory_;
  NamedTensors missing_;
  std::vector<std::string> unexpected_{};
  Tensor head_{};
};
}  // namespace

Llama load_llama(const std::filesystem::path& directory) {
  const MemoryScope scope(MemoryUse::workspace);
  constexpr std::size_t most = 1 << 20;
  const fs::path path = directory / "config.json";
  const std::string where = "load_llama " + path.string();
  const Json json = parsed_json(where, files::read_text("load_llama", path, most));
  const JsonValue root(where, "", json);
  if (!root.is_object()) root.refuse("a configuration is an object.");
  const Config config{root};
  const LlamaType& type = type_in(config);
  const RandomKey before = default_generator().state();
  Llama model(options_in(config, type));
  default_generator().set_state(before);
  Loading loading(model, type, directory);
  bool first = true;
  for (const std::string& name : weight_files(directory)) {
    const SafetensorsFile file = load_safetensors(directory / name);
    const auto any = std::ranges::find_if(
        file.tensors, [](const auto& one) { return is_floating(one.second.dtype()); });
    if (first && any != file.tensors.end()) model.to(any->second.dtype());
    first = false;
    loading.read(file);
  }
  loading.finish();
  return model;
}

namespace {
const LlamaType& type_of(const LlamaOptions& o) {
  const bool moe = o.experts > 0;
  const std::string_view name = moe          ? (o.qk_norm ? "qwen3_moe" : "mixtral")
                                : o.qk_norm  ? "qwen3"
                                : o.window   ? (o.qkv_bias ? "qwen2" : "mistral")
                                : o.qkv_bias ? (o.output_bias ? "llama" : "qwen2")
                                             : "llama";
  const LlamaType& type = *std::ranges::find(llama_types, name, &LlamaType::name);
  const bool free_bias = name == "llama" || type.qk_norm;
  const bool biases =
      free_bias ? o.qkv_bias == o.output_bias : o.qkv_bias == type.bias && !o.output_bias;
  const bool layers = o.unlimited_layers == 0 || name.starts_with("qwen");
  if (!biases || !layers || o.rope.interleaved || o.rope.position != 0 ||
      (name == "mixtral" && !o.normalized_experts))
    fail<UnsupportedError>("save_llama",
                           "Hugging Face's transformers has no model type with these options. The "
                           "nearest one is ",
                           name, ". Use nn::save(), or change the options.");
  return type;
}

nlohmann::json rope_of(const RopeOptions& rope) {
  nlohmann::json json{{"rope_theta", rope.theta}, {"rope_type", "default"}};
  if (rope.scaling.factor == 1) return json;
  json["rope_type"] = "llama3", json["factor"] = rope.scaling.factor;
  json["low_freq_factor"] = rope.scaling.low_frequency_factor;
  json["high_freq_factor"] = rope.scaling.high_frequency_factor;
  json["original_max_position_embeddings"] = rope.scaling.original_context;
  return json;
}

/// For versions 4 and 5 of transformers, which name the entries of rope and dtype differently.
std::string config_of(const Llama& model, const LlamaType& type) {
  const LlamaOptions& o = model.options;
  const DType dtype = model.embed_tokens.weight.dtype();
  const char* const word = dtype == bf16  ? "bfloat16"
                           : dtype == f16 ? "float16"
                           : dtype == f64 ? "float64"
                                          : "float32";
  const nlohmann::json rope = rope_of(o.rope);
  nlohmann::json config{{"architectures", {type.architecture}},
                        {"model_type", type.name},
                        {"vocab_size", o.vocabulary},
                        {"max_position_embeddings", o.context},
                        {"num_hidden_layers", o.layers},
                        {"hidden_size", o.width},
                        {"num_attention_heads", o.heads},
                        {"num_key_value_heads", o.key_heads},
                        {"head_dim", o.head_width},
                        {"intermediate_size", o.hidden},
                        {"hidden_act", "silu"},
                        {"rms_norm_eps", o.norm_eps},
                        {"rope_theta", o.rope.theta},
                        {"rope_scaling", o.rope.scaling.factor == 1 ? nlohmann::json() : rope},
                        {"rope_parameters", rope},
                        {"attention_bias", o.output_bias},
                        {"attention_dropout", 0.0},
                        {"tie_word_embeddings", o.tied},
                        {"bos_token_id", nullptr},
                        {"eos_token_id", nullptr},
                        {"torch_dtype", word},
                        {"dtype", word}};
  if (o.window > 0) config["sliding_window"] = o.window;
  else if (type.name != "llama") config["sliding_window"] = nullptr;
  if (type.name.starts_with("qwen")) {
    config["use_sliding_window"] = o.window > 0;
    config["max_window_layers"] = o.window > 0 ? o.unlimited_layers : o.layers;
  }
  if (!type.experts.empty()) {
    config[type.name == "mixtral" ? "num_local_experts" : "num_experts"] = o.experts;
    config["num_experts_per_tok"] = o.experts_per_token;
  }
  if (type.name == "qwen3_moe") {
    config["moe_intermediate_size"] = o.hidden, config["norm_topk_prob"] = o.normalized_experts;
    config["decoder_sparse_step"] = 1, config["mlp_only_layers"] = nlohmann::json::array();
  }
  return config.dump(2) + '\n';
}

std::string shard_name(std::size_t i, std::size_t count) {
  const auto number = [](std::size_t n) {
    const std::string digits = std::to_string(n);
    return std::string(5 - std::min<std::size_t>(5, digits.size()), '0') + digits;
  };
  return "model-" + number(i + 1) + "-of-" + number(count) + ".safetensors";
}
}  // namespace

void save_llama(const Llama& model, const std::filesystem::path& directory, int64_t largest_file) {
  const MemoryScope scope(MemoryUse::workspace);
  if (largest_file < 1)
    fail<UsageError>("save_llama", "a file has ", largest_file, " bytes. Use 1 or more.");
  const LlamaType& type = type_of(model.options);
  std::vector<NamedTensors> shards(1);
  int64_t total = 0, in_last = 0;
  for (const auto& [name, x] : tensors_of(model, type)) {
    if (in_last > 0 && in_last + x.bytes() > largest_file) shards.emplace_back(), in_last = 0;
    shards.back()[name] = x;
    in_last += x.bytes(), total += x.bytes();
  }
  files::make_directories("save_llama", directory);
  // Programs that read the files expect this key.
  const std::map<std::string, std::string> metadata{{"format", "pt"}};
  const fs::path index = directory / "model.safetensors.index.json";
  if (shards.size() == 1) {
    save_safetensors(directory / "model.safetensors", shards[0], metadata);
    std::error_code error;
    fs::remove(index, error);  // of a model that was here before; readers prefer it
  } else {
    nlohmann::json map = nlohmann::json::object();
    for (std::size_t i = 0; i < shards.size(); ++i) {
      const std::string file = shard_name(i, shards.size());
      save_safetensors(directory / file, shards[i], metadata);
      for (const auto& [name, x] : shards[i]) map[name] = file;
    }
    const nlohmann::json content{{"metadata", {{"total_size", total}}}, {"weight_map", map}};
    files::replace("save_llama", index, content.dump(2) + '\n');
  }
  files::replace("save_llama", directory / "config.json", config_of(model, type));
}

}  // namespace halftone::nn::models
