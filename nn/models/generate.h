// Texts that a decoder continues, token by token.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <halftone/nn/models/gpt.h>
#include <halftone/nn/models/llama.h>

namespace halftone::nn::models {

/// Filters apply in this order, as in Hugging Face's transformers; by default none does.
struct GenerateOptions {
  int64_t max_tokens = 100;  // that are added to each text
  /// Logits of tokens that are in the text are divided by it if positive, else multiplied (Keskar
  /// et al. 2019).
  double repetition_penalty = 1;
  double temperature = 0;       // 0: the most probable token, always
  int64_t top_k = 0;            // only the k most probable tokens; 0: all
  double top_p = 1;             // only the most probable tokens, up to this probability together
  double min_p = 0;             // only tokens with this share of the largest probability
  std::vector<int64_t> stop{};  // a text ends with the first of these tokens
  /// Text i draws its numbers by seed + i, so its tokens do not depend on the other texts.
  uint64_t seed = 0;
  /// Called for each new token, with the number of its text.
  std::function<void(int64_t text, int64_t token)> on_token{};
};

using TokenTexts = std::vector<std::vector<int64_t>>;

/// Returns the tokens that continue each text. All texts are read together: first what all have,
/// then token by token; a text that is longer than the others is read, not continued, meanwhile.
/// Keys and values are stored; a text that reaches the model's context forgets all but its last
/// half context. Runs without recording, in the mode that the model is in. With portable bits a
/// text has the same tokens alone and among others. Throws UsageError for an empty text, for
/// options that cannot be, and if a logit is NaN.
TokenTexts generate(const Gpt& model, const TokenTexts& texts, const GenerateOptions& options = {});
TokenTexts generate(const Llama& model, const TokenTexts& texts,
                    const GenerateOptions& options = {});

/// Returns the logits [n, l, vocabulary] of tokens [n, l] that follow those in the cache.
using ReadTokens = std::function<Tensor(const Tensor& tokens, KeyValueCache& past)>;
/// The same for any reader with a context: a model in a training's precision, for example.
TokenTexts generate(const ReadTokens& read, int64_t context, Device device, const TokenTexts& texts,
                    const GenerateOptions& options = {});

}  // namespace halftone::nn::models
