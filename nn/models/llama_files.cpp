// Llama's files: Hugging Face's config.json, and .safetensors in one file or several.
#include <halftone/nn/models/llama.h>

#include <algorithm>
#include <array>
#include <set>
#include <span>

#include <nlohmann/json.hpp>

#include <halftone/core/backend.h>
#include <halftone/core/error.h>
#include <halftone/core/files.h>
#include <halftone/core/json_value.h>

namespace halftone::nn::models {

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
