// The decoder of today's open models, in the variants of Llama 2 and 3 (Touvron et al. 2023),
// Mistral, Qwen 2 and 3, and, with experts, of Mixtral (Jiang et al. 2024) and Qwen 3 MoE: RMS
// norms, rotary positions, fewer heads for keys than for queries, gated units. Names are those of
// Hugging Face's files (model.layers.0.self_attn.q_proj.weight, ...).
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include <halftone/nn/conv.h>
#include <halftone/nn/layers.h>
#include <halftone/nn/models/key_values.h>
#include <halftone/nn/module.h>

namespace halftone::nn::models {

struct LlamaOptions {
  int64_t vocabulary = 32000, context = 2048, layers = 12, width = 768;
  int64_t heads = 12, key_heads = 4;
  int64_t head_width = 0;  // 0: width / heads
  int64_t hidden = 2048;   // width inside the gated unit, or inside each expert
  double norm_eps = 1e-5;
  RopeOptions rope{};
  bool qkv_bias = false, output_bias = false;  // of attention: Qwen 2 has the first
  bool qk_norm = false;                        // norms of each head's queries and keys: Qwen 3
  bool tied = false;                           // the head shares its weights with the embedding
  /// How many tokens a token sees, itself included; 0: itself and all before it. In the first
  /// `unlimited_layers` layers it sees all.
  int64_t window = 0, unlimited_layers = 0;
  int64_t experts = 0, experts_per_token = 2;  // 0: no mixture, one gated unit per layer
  bool normalized_experts = true;              // the weights of a token's experts add up to 1
};

/// For each layer, two tensors [experts]: the share of the tokens that went to each expert, and the
/// mean probability that the router gave it.
struct RoutedTokens {
  std::vector<Tensor> shares{}, chances{};
};

/// Computes x = x + attention(norm(x)), then x + mlp(norm(x)).
struct LlamaBlock final : LayerOf<Tensor(const Tensor& x, KeyValues* past,
                                         const detail::Reading& reading, RoutedTokens* routed)> {
  struct Attention final
      : LayerOf<Tensor(const Tensor& x, KeyValues* past, const detail::Reading& reading)> {
    LlamaOptions options;
    int64_t window;
    Linear q_proj, k_proj, v_proj, o_proj;
    std::optional<RmsNorm> q_norm{}, k_norm{};
    Attention(const LlamaOptions& options, int64_t layer);
    /// past: null, or the keys and values of the tokens before x, to which those of x are appended.
    Tensor forward(const Tensor& x, KeyValues* past, const detail::Reading& reading) const override;
    void describe(Fields& field) override;
  };
  struct Mlp final : Layer {
    Linear gate_proj, up_proj, down_proj;
    explicit Mlp(const LlamaOptions& options);
    Tensor forward(const Tensor& x) const override;
    void describe(Fields& field) override;
  };
  /// Sends each token to the experts that the router, in f32, finds most probable, and adds up
  /// their results, weighted by these probabilities (Shazeer et al. 2017). No token is dropped.
  struct Experts final : LayerOf<Tensor(const Tensor& x, RoutedTokens* routed)> {
    int64_t per_token;
    bool normalized;
    Router gate;
    Parameter gate_up_proj, down_proj;  // [experts, 2 hidden, width], [experts, width, hidden]
    explicit Experts(const LlamaOptions& options);
    Tensor forward(const Tensor& x, RoutedTokens* routed) const override;
    void describe(Fields& field) override;
  };
  RmsNorm input_layernorm, post_attention_layernorm;
  Attention self_attn;
  std::optional<Mlp> mlp{};
  std::optional<Experts> experts{};
  LlamaBlock(const LlamaOptions& options, int64_t layer);
  Tensor forward(const Tensor& x, KeyValues* past, const detail::Reading& reading,
                 RoutedTokens* routed) const override;
  void describe(Fields& field) override;
};

struct Llama final : Layer {
  LlamaOptions options;
  Embedding embed_tokens;
  std::vector<LlamaBlock> layers;
  RmsNorm norm;
  explicit Llama(const LlamaOptions& options = {});
  using Layer::operator();
  /// tokens: i64 [n, l], l at most the context; the result: logits [n, l, vocabulary] of each
  /// token's successor.
  Tensor forward(const Tensor& tokens) const override;
  /// Reads tokens that follow those in `cache`, and appends them to the cache. Returns the logits
  /// of these tokens, as if the whole text had been read. Throws what Gpt's operator() throws.
  Tensor operator()(const Tensor& tokens, KeyValueCache& cache) const;

  struct Balanced {
    Tensor logits, balance;
    std::vector<Tensor> tensors() const { return {logits, balance}; }
  };
  /// Returns the logits and a loss for the balance of experts (Fedus et al. 2021). The loss is
  /// experts_per_token if all experts get equally many tokens. A training adds a small multiple of
  /// it, 0.001 to 0.02, to its own loss. Throws UsageError without experts.
  Balanced with_balance(const Tensor& tokens) const;
  /// The head appears as lm_head.weight, whether it is tied or not.
  void describe(Fields& field) override;

 private:
  Tensor computed(const Tensor& tokens, KeyValueCache* cache, const detail::Reading& reading,
                  RoutedTokens* routed) const;
  Parameter head_;
};

/// Reads config.json and the weights in a directory that Hugging Face's transformers saved: in
/// model.safetensors, or in the files of model.safetensors.index.json. Supports the model types
/// llama, mistral, qwen2, qwen3, mixtral and qwen3_moe. The weights keep the dtype of the file
/// (f32, bf16, f16). Throws UnsupportedError, with the entry's name, for a configuration that Llama
/// does not support; FormatError for files that are malformed; UsageError for missing and
/// unexpected tensors; ShapeError for tensors of other shapes.
Llama load_llama(const std::filesystem::path& directory);

/// Writes files for AutoModelForCausalLM.from_pretrained(): config.json and model.safetensors, or
/// several files of at most `largest_file` bytes (or one tensor) with their index. Throws
/// UnsupportedError for options that no model type has, and the FormatError of save_safetensors().
void save_llama(const Llama& model, const std::filesystem::path& directory,
                int64_t largest_file = 5'000'000'000);

}  // namespace halftone::nn::models
