// GPT-2 (Radford et al. 2019): a pre-norm transformer decoder over tokens, with learned positions
// and a head that shares its weights with the token embedding. Names are those of GPT-2's published
// weights (transformer.h.0.attn.c_attn.weight, ...). The workloads `gpt_char` and `gpt2_124m`.
#pragma once

#include <filesystem>
#include <vector>

#include <halftone/nn/conv.h>
#include <halftone/nn/layers.h>
#include <halftone/nn/models/key_values.h>
#include <halftone/nn/module.h>

namespace halftone::nn::models {

struct GptOptions {
  int64_t vocabulary = 50257, context = 1024, layers = 12, heads = 12, width = 768;
  double dropout = 0;
};

/// Computes x = x + attention(norm(x)), then x + mlp(norm(x)).
struct GptBlock final : Layer {
  struct Attention final : Layer {
    Linear c_attn, c_proj;
    int64_t heads;
    double dropout;
    explicit Attention(const GptOptions& options);
    using Layer::operator();
    Tensor forward(const Tensor& x) const override;
    /// Attends also to the tokens in `past`, and appends x's keys and values to `past`.
    Tensor operator()(const Tensor& x, KeyValues& past, const detail::Reading& reading) const;
    void describe(Fields& field) override;
  };
  struct Mlp final : Layer {
    Linear c_fc, c_proj;
    double dropout;
    explicit Mlp(const GptOptions& options);
    Tensor forward(const Tensor& x) const override;
    void describe(Fields& field) override;
  };
  LayerNorm ln_1, ln_2;
  Attention attn;
  Mlp mlp;
  explicit GptBlock(const GptOptions& options);
  using Layer::operator();
  Tensor forward(const Tensor& x) const override;
  Tensor operator()(const Tensor& x, KeyValues& past, const detail::Reading& reading) const;
  void describe(Fields& field) override;
};

struct Gpt final : Layer {
  GptOptions options;
  Embedding wte, wpe;
  Dropout drop;
  std::vector<GptBlock> h;
  LayerNorm ln_f;
  explicit Gpt(const GptOptions& options = {});
  using Layer::operator();
  /// tokens: i64 [n, l], l at most the context; the result: logits [n, l, vocabulary] of each
  /// token's successor.
  Tensor forward(const Tensor& tokens) const override;
  /// Reads tokens that follow those in `cache`, and appends them to the cache. Returns the logits
  /// of these tokens, as if the whole text had been read. Throws UsageError if gradients are
  /// recorded. Throws ShapeError if n is not the cache's, or if cache and tokens together exceed
  /// cache.room or the context. Throws one of the two for a cache of another model.
  Tensor operator()(const Tensor& tokens, KeyValueCache& cache) const;
  /// The head appears as lm_head.weight, tied to transformer.wte.weight.
  void describe(Fields& field) override;

 private:
  /// Returns the embedding of tokens, the first of which is at `position`.
  Tensor embedded(const Tensor& tokens, int64_t position) const;
  Tensor logits(const Tensor& x) const;
  Parameter head_;
};

/// Loads the weights of a GPT-2 that PyTorch saved as .safetensors: from Hugging Face's
/// transformers (whose Conv1D weights are [in, out] and are transposed here) or with linear layers.
/// The prefix "transformer." and the tied lm_head.weight may be missing, but an lm_head.weight that
/// is not the embedding is an error, because this model ties the two; stored causal masks are
/// ignored. Errors use the file's names. Returns and throws what nn::load() does.
LoadReport load_gpt2(Gpt& model, const std::filesystem::path& path, LoadOptions options = {});

/// Writes files for Hugging Face's GPT2LMHeadModel.from_pretrained(): model.safetensors and
/// config.json in a directory, which is created if missing. For a path that ends with .safetensors
/// it writes the weights alone. Weights of linear maps are stored as [in, out]; the tied head is
/// omitted. (nn::save() writes PyTorch's linear layouts, which transformers refuses.) Throws the
/// FormatError of save_safetensors().
void save_gpt2(const Gpt& model, const std::filesystem::path& path);

}  // namespace halftone::nn::models
