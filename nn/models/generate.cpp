// The loop that continues texts, and the choice of a token.
#include <halftone/nn/models/generate.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/core/math.h>
#include <halftone/core/random.h>

namespace halftone::nn::models {

namespace {
void check_options(const TokenTexts& texts, int64_t context, const GenerateOptions& o) {
  constexpr std::string_view op = "generate";
  for (std::size_t i = 0; i < texts.size(); ++i)
    if (texts[i].empty()) fail<UsageError>(op, "text ", i, " is empty. Begin it with a token.");
  if (context < 2)
    fail<UsageError>(op, "the context is ", context, ". Texts need 2 tokens or more.");
  if (o.max_tokens < 0 || o.top_k < 0)
    fail<UsageError>(op, "max_tokens is ", o.max_tokens, ", top_k ", o.top_k, ". Use 0 or more.");
  if (!(o.temperature >= 0) || !std::isfinite(o.temperature))
    fail<UsageError>(op, "temperature is ", o.temperature, ". Use 0 for the most probable token, ",
                     "or a positive number.");
  if (!(o.repetition_penalty > 0) || !std::isfinite(o.repetition_penalty))
    fail<UsageError>(op, "repetition_penalty is ", o.repetition_penalty, ". It must be positive.");
  if (!(o.top_p > 0 && o.top_p <= 1) || !(o.min_p >= 0 && o.min_p <= 1))
    fail<UsageError>(op, "top_p is ", o.top_p, ", min_p ", o.min_p,
                     ". They must be on (0, 1] and [0, 1].");
}

/// Chooses the tokens of one text from logits on the host.
class Choice {
 public:
  explicit Choice(const GenerateOptions& options) : o_(options) {}

  /// Returns the next token. `draw`: a number on [0, 1).
  int64_t operator()(std::span<float> logits, std::span<const int64_t> text, double draw) {
    if (o_.repetition_penalty != 1) penalize(logits, text);
    const auto largest = std::ranges::max_element(logits);
    if (o_.temperature == 0) return largest - logits.begin();
    order_.resize(logits.size());
    std::iota(order_.begin(), order_.end(), 0);
    std::ranges::stable_sort(order_, [&](int64_t a, int64_t b) {
      return logits[std::size_t(a)] > logits[std::size_t(b)];
    });
    if (o_.top_k > 0) order_.resize(std::min(order_.size(), std::size_t(o_.top_k)));
    const double shift = *largest;
    weights_.clear();
    for (const int64_t token : order_)
      weights_.push_back(math::exp((double(logits[std::size_t(token)]) - shift) / o_.temperature));
    double total = std::accumulate(weights_.begin(), weights_.end(), 0.0);
    if (o_.top_p < 1) total = keep_while([&](double before) { return before < o_.top_p * total; });
    if (o_.min_p > 0) {
      const auto end = std::ranges::find_if(weights_, [&](double w) { return w < o_.min_p; });
      weights_.erase(end, weights_.end());
      total = std::accumulate(weights_.begin(), weights_.end(), 0.0);
    }
    double left = draw * total;
    std::size_t i = 0;
    while (i + 1 < weights_.size() && (left -= weights_[i]) >= 0) ++i;
    return order_[i];
  }

 private:
  void penalize(std::span<float> logits, std::span<const int64_t> text) const {
    const auto penalty = float(o_.repetition_penalty);
    std::vector<int64_t> met(text.begin(), text.end());
    std::ranges::sort(met);
    met.erase(std::unique(met.begin(), met.end()), met.end());
    for (const int64_t token : met)
      if (float& logit = logits[std::size_t(token)]; logit > 0) logit /= penalty;
      else logit *= penalty;
  }
  /// Keeps the weights before which keeps(sum of those before) holds; returns their sum.
  template <class Keeps> double keep_while(const Keeps& keeps) {
    double sum = 0;
    std::size_t count = 0;
    while (count < weights_.size() && keeps(sum)) sum += weights_[count++];
    weights_.resize(count);
    return sum;
  }

  const GenerateOptions& o_;
  std::vector<int64_t> order_{};
  std::vector<double> weights_{};
};

double uniform(uint64_t seed, int64_t number) {
  const auto words = Philox::words(seed, uint64_t(number));
  return (double(words[0] >> 5) * 0x1p26 + double(words[1] >> 6)) * 0x1p-53;
}

/// Returns tokens [begin, end) of all texts, which have that many.
Tensor window_of(const TokenTexts& texts, int64_t begin, int64_t end, Device device) {
  std::vector<int64_t> tokens;
  for (const std::vector<int64_t>& text : texts)
    tokens.insert(tokens.end(), text.begin() + begin, text.begin() + end);
  return from_vector(tokens, {int64_t(texts.size()), end - begin}, i64, device);
}

/// Texts while they grow. All have been read up to the same place.
struct Growing {
  const GenerateOptions& options;
  TokenTexts texts;
  std::vector<std::size_t> prompts{}, limits{};
  std::vector<bool> done{};

  Growing(const TokenTexts& given, const GenerateOptions& o) : options(o), texts(given) {
    for (const std::vector<int64_t>& text : texts) {
      prompts.push_back(text.size());
      limits.push_back(text.size() + std::size_t(o.max_tokens));
      done.push_back(o.max_tokens == 0);
    }
  }
  bool all_done() const { return std::ranges::find(done, false) == done.end(); }
  /// The number of tokens that every text has.
  int64_t common() const {
    return int64_t(std::ranges::min_element(texts, {}, &std::vector<int64_t>::size)->size());
  }
  int64_t longest() const { return int64_t(*std::ranges::max_element(limits)); }
  /// Adds a token to the texts that have been read to their end. logits: [n, vocabulary].
  void grow(std::vector<float>& logits, std::size_t read) {
    const std::size_t vocabulary = logits.size() / texts.size();
    Choice choose(options);
    for (std::size_t i = 0; i < texts.size(); ++i) {
      if (texts[i].size() > read) continue;
      const std::span<float> own = std::span(logits).subspan(i * vocabulary, vocabulary);
      if (std::ranges::any_of(own, [](float x) { return std::isnan(x); }))
        fail<UsageError>("generate", "a logit of text ", i, " is NaN after ", read,
                         " tokens. Look for infinite weights, or use a wider dtype.");
      // A text that has ended goes on with a token that is not returned: the others still need
      // rows.
      const int64_t token = done[i]
                                ? texts[i].back()
                                : choose(own, texts[i], uniform(options.seed + i, int64_t(read)));
      texts[i].push_back(token);
      if (done[i]) continue;
      if (options.on_token) options.on_token(int64_t(i), token);
      done[i] = texts[i].size() == limits[i] ||
                std::ranges::find(options.stop, token) != options.stop.end();
      if (done[i]) limits[i] = texts[i].size();
    }
  }
  TokenTexts added() const {
    TokenTexts result;
    for (std::size_t i = 0; i < texts.size(); ++i)
      result.emplace_back(texts[i].begin() + std::ptrdiff_t(prompts[i]),
                          texts[i].begin() + std::ptrdiff_t(limits[i]));
    return result;
  }
};
}  // namespace

TokenTexts generate(const ReadTokens& read, int64_t context, Device device, const TokenTexts& texts,
                    const GenerateOptions& options) {
  check_options(texts, context, options);
  if (texts.empty()) return {};
  const NoGrad no_grad;
  Growing growing(texts, options);
  KeyValueCache past{.room = std::min(context, growing.longest())};
  int64_t end = 0;  // all texts have been read up to here
  while (!growing.all_done()) {
    int64_t begin = end;
    if (past.length == past.room) {
      begin = std::max<int64_t>(0, end - context / 2);
      past = {.room = past.room};
    }
    end = std::min(growing.common(), begin + past.room - past.length);
    const Tensor logits = read(window_of(growing.texts, begin, end, device), past);
    std::vector<float> last = cast(select(logits, 1, -1), f32).to(Device::cpu()).to_vector<float>();
    growing.grow(last, std::size_t(end));
  }
  return growing.added();
}

TokenTexts generate(const Gpt& model, const TokenTexts& texts, const GenerateOptions& options) {
  const auto read = [&](const Tensor& tokens, KeyValueCache& past) { return model(tokens, past); };
  return generate(read, model.options.context, model.wte.weight.device(), texts, options);
}

TokenTexts generate(const Llama& model, const TokenTexts& texts, const GenerateOptions& options) {
  const auto read = [&](const Tensor& tokens, KeyValueCache& past) { return model(tokens, past); };
  return generate(read, model.options.context, model.embed_tokens.weight.device(), texts, options);
}

}  // namespace halftone::nn::models
