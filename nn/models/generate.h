// Texts that a decoder continues, token by token.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <halftone/nn/models/gpt.h>
#include <halftone/nn/models/llama.h>

namespace halftone::nn::models {

/// How a token is chosen. The members from repetition_penalty to min_p apply in this order, as in
/// Hugging Face's transformers; by default none of them changes anything.
struct GenerateOptions {
  int64_t max_tokens = 100;  // the most that are added to a text
  /// For tokens that are already in the text, a logit above 0 is divided by this number, another
  /// one multiplied by it (Keskar et al. 2019).
  double repetition_penalty = 1;
  double temperature = 0;       // 0: the most probable token, always
  int64_t top_k = 0;            // only the k most probable tokens; 0: all
  double top_p = 1;             // only the most probable tokens, up to this probability together
  double min_p = 0;             // only tokens with this share of the largest probability
  std::vector<int64_t> stop{};  // a text ends with the first of these tokens
  /// Text i draws its random numbers from seed + i, so its tokens do not depend on other texts.
  uint64_t seed = 0;
  /// Called for each new token, with the number of its text.
  std::function<void(int64_t text, int64_t token)> on_token{};
};

using TokenTexts = std::vector<std::vector<int64_t>>;

/// Returns the tokens that continue each text, without the text. The texts form one batch: their
/// first tokens are read together, up to the length of the shortest, then one token of each at a
/// time. Keys and values are stored. When the model's context is full, all but its last half is
/// forgotten. Records no gradients, and leaves the model in its mode. With portable bits a text has
/// the same tokens alone and among others. Throws UsageError for an empty text, for options out of
/// range, and if a logit is NaN.
TokenTexts generate(const Gpt& model, const TokenTexts& texts, const GenerateOptions& options = {});
TokenTexts generate(const Llama& model, const TokenTexts& texts,
                    const GenerateOptions& options = {});

/// A function that returns the logits [n, l, vocabulary] of tokens [n, l] that follow those in the
/// cache `past`, and appends the tokens to the cache.
using ReadTokens = std::function<Tensor(const Tensor& tokens, KeyValueCache& past)>;
/// Continues texts by any function that reads tokens, such as a model in a training's precision.
TokenTexts generate(const ReadTokens& read, int64_t context, Device device, const TokenTexts& texts,
                    const GenerateOptions& options = {});

}  // namespace halftone::nn::models
