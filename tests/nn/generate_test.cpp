// Generated texts: the choice of tokens, several texts at once, contexts, caches, errors.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>

#include <doctest/doctest.h>

#include <halftone/halftone.h>

namespace halftone::test::generate_test {
namespace {

using namespace halftone::nn::models;

/// A reader whose logits are the same after every token.
ReadTokens always(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(float(std::log(p)));
  return [logits](const Tensor& tokens, KeyValueCache& past) {
    past.length += tokens.size(1);
    const Tensor row = from_vector(logits, {1, 1, int64_t(logits.size())});
    return expand(row, {tokens.size(0), tokens.size(1), int64_t(logits.size())});
  };
}
const std::vector<double> falling{0.15, 0.5, 0.05, 0.3};

/// How often each token is drawn.
std::array<double, 4> shares(GenerateOptions options) {
  options.max_tokens = 4000;
  std::array<double, 4> counts{};
  const TokenTexts texts = generate(always(falling), 10000, {}, {{0}}, options);
  for (const int64_t token : texts[0]) counts[std::size_t(token)] += 1.0 / 4000;
  return counts;
}
void check_shares(const GenerateOptions& options, const std::array<double, 4>& expected) {
  const auto got = shares(options);
  for (std::size_t i = 0; i < 4; ++i) {
    CAPTURE(i);
    if (expected[i] == 0) CHECK(got[i] == 0);
    else CHECK(got[i] == doctest::Approx(expected[i]).epsilon(0.1));
  }
}

/// A model of two layers with weights that matter.
Llama small_model(uint64_t seed, nn::models::LlamaOptions options) {
  manual_seed(seed);
  options.vocabulary = 50, options.context = 16, options.layers = 2;
  options.width = 24, options.heads = 4, options.key_heads = 2;
  Llama model(options);
  for (const Tensor& p : model.parameters())
    if (p.rank() > 1) nn::init::normal(p, 0, 0.3);
  return model;
}
Llama small_llama(int64_t window = 0) {
  return small_model(3, {.hidden = 40, .window = window, .unlimited_layers = 1});
}
Llama small_mixture() { return small_model(5, {.hidden = 16, .qk_norm = true, .experts = 5}); }

/// The largest difference of logits when a text [2, 12] is read in pieces, over the largest logit.
double error_of_pieces(const Llama& model, const std::vector<int64_t>& pieces) {
  const NoGrad no_grad;
  const Tensor text = randint(0, 50, {2, 12}), whole = model(text);
  KeyValueCache past{.room = 13};
  std::vector<Tensor> parts;
  for (const int64_t count : pieces)
    parts.push_back(model(slice(text, 1, past.length, past.length + count), past));
  CHECK(past.layers[0].keys.shape() == Shape{2, 2, 13, 6});
  return max(abs(cast(cat(parts, 1) - whole, f64))).item() / max(abs(cast(whole, f64))).item();
}

}  // namespace

TEST_CASE("generate: temperature, top-k, top-p and min-p") {
  check_shares({.temperature = 1}, {0.15, 0.5, 0.05, 0.3});
  const double sum = 0.15 * 0.15 + 0.25 + 0.0025 + 0.09;
  check_shares({.temperature = 0.5}, {0.15 * 0.15 / sum, 0.25 / sum, 0.0025 / sum, 0.09 / sum});
  check_shares({.temperature = 1, .top_k = 2}, {0, 0.5 / 0.8, 0, 0.3 / 0.8});
  check_shares({.temperature = 1, .top_k = 9}, {0.15, 0.5, 0.05, 0.3});
  check_shares({.temperature = 1, .top_p = 0.81}, {0.15 / 0.95, 0.5 / 0.95, 0, 0.3 / 0.95});
  check_shares({.temperature = 1, .top_p = 0.49}, {0, 1, 0, 0});
  check_shares({.temperature = 1, .min_p = 0.2}, {0.15 / 0.95, 0.5 / 0.95, 0, 0.3 / 0.95});
  check_shares({.temperature = 1, .min_p = 1}, {0, 1, 0, 0});
  check_shares({}, {0, 1, 0, 0});
}

TEST_CASE("generate: seeds, stop tokens, callbacks, repetition penalty") {
  const GenerateOptions options{.max_tokens = 30, .temperature = 1, .seed = 7};
  const auto read = always(falling);
  const TokenTexts texts = generate(read, 100, {}, {{0}, {0}, {0}}, options);
  CHECK(texts == generate(read, 100, {}, {{0}, {0}, {0}}, options));
  CHECK(texts[0] != texts[1]);
  GenerateOptions later = options;
  later.seed = 8;
  CHECK(generate(read, 100, {}, {{0}}, later)[0] == texts[1]);

  GenerateOptions stopping = options;
  stopping.stop = {2, 0};
  std::vector<std::vector<int64_t>> seen(3);
  stopping.on_token = [&](int64_t text, int64_t token) {
    seen[std::size_t(text)].push_back(token);
  };
  const TokenTexts stopped = generate(read, 100, {}, {{0}, {0}, {0}}, stopping);
  CHECK(stopped == seen);
  for (std::size_t i = 0; i < 3; ++i) {
    const auto end = std::ranges::find_if(texts[i], [](int64_t t) { return t == 2 || t == 0; });
    REQUIRE(end != texts[i].end());
    CHECK(stopped[i] == std::vector<int64_t>(texts[i].begin(), end + 1));
  }
  // Logits 2, 1, -1, -2: a penalty of 4 makes a met 2 smaller than 1, and a met -1 than -2.
  const ReadTokens logits = [](const Tensor& tokens, KeyValueCache& past) {
    past.length += tokens.size(1);
    return expand(from_vector({2.f, 1.f, -1.f, -2.f}, {1, 1, 4}), {1, tokens.size(1), 4});
  };
  const GenerateOptions penalty{.max_tokens = 3, .repetition_penalty = 4};
  CHECK(generate(logits, 100, {}, {{3}}, penalty)[0] == std::vector<int64_t>{0, 1, 0});
  CHECK(generate(logits, 100, {}, {{3}}, {.max_tokens = 0})[0].empty());
  CHECK(generate(logits, 100, {}, {}).empty());
}

TEST_CASE("generate: decoders read a text in pieces as they read it whole") {
  const std::vector<std::vector<int64_t>> ways{{12}, std::vector<int64_t>(12, 1), {5, 1, 4, 2}};
  const Llama plain = small_llama(), window = small_llama(4), mixture = small_mixture();
  for (const Llama* model : {&plain, &window, &mixture})
    for (const std::vector<int64_t>& pieces : ways)
      CHECK(error_of_pieces(*model, pieces) <= 64 * epsilon(f32));
}

TEST_CASE("generate: with portable bits a text is the same alone and among others") {
  const PortableBitsScope bits(true);
  const TokenTexts texts{{1, 2, 3}, {4, 5, 6, 7, 8, 9, 10, 11}, {12}, {1, 2, 3, 4, 5}};
  const Llama plain = small_llama(4), mixture = small_mixture();
  const Gpt gpt({.vocabulary = 50, .context = 16, .layers = 2, .heads = 2, .width = 16});
  const auto check = [&](const auto& model) {
    const GenerateOptions options{.max_tokens = 6, .temperature = 1, .seed = 20};
    const TokenTexts together = generate(model, texts, options);
    for (std::size_t i = 0; i < texts.size(); ++i) {
      GenerateOptions own = options;
      own.seed += i;
      CHECK(generate(model, {texts[i]}, own)[0] == together[i]);
    }
    // The logits themselves, read in other pieces and next to another text.
    const NoGrad no_grad;
    KeyValueCache first, second;
    const Tensor two = from({{1, 2, 3, 4, 5, 6}, {9, 8, 7, 6, 5, 4}});
    model(slice(two, 1, 0, 2), first), model(slice(slice(two, 0, 0, 1), 1, 0, 5), second);
    const Tensor among = model(slice(two, 1, 2, 6), first),
                 alone = model(slice(slice(two, 0, 0, 1), 1, 5, 6), second);
    CHECK(select(select(among, 0, 0), 0, 3).to_vector<float>() ==
          select(select(alone, 0, 0), 0, 0).to_vector<float>());
  };
  check(plain), check(mixture), check(gpt);
}

TEST_CASE("generate: a text that reaches the context forgets its first half") {
  const Llama model = small_llama();
  const std::vector<int64_t> prompt{3, 1, 4};
  const std::vector<int64_t> added = generate(model, {prompt}, {.max_tokens = 40})[0];
  CHECK(added.size() == 40);
  std::vector<int64_t> all = prompt;
  all.insert(all.end(), added.begin(), added.end());
  // 16 tokens fit. The 17th comes from all of them, the next from the last 9.
  const NoGrad no_grad;
  const auto next = [&](std::size_t begin, std::size_t end) {
    const Tensor text =
        from_span<int64_t>(std::span(all).subspan(begin, end - begin), {1, int64_t(end - begin)});
    return int64_t(argmax(select(select(model(text), 0, 0), 0, -1)).item());
  };
  CHECK(next(0, 16) == all[16]);
  CHECK(next(8, 17) == all[17]);
  CHECK(next(8, 24) == all[24]);
  // A text that is longer than the context.
  const std::vector<int64_t> rest = generate(model, {all}, {.max_tokens = 2})[0];
  CHECK(rest.size() == 2);
}

TEST_CASE("generate: errors") {
  const auto read = always(falling);
  const auto refuses = [&](const GenerateOptions& options, const char* message) {
    CHECK_THROWS_WITH_AS(generate(read, 10, {}, {{0}}, options), message, UsageError);
  };
  refuses({.max_tokens = -1}, "[generate] max_tokens is -1, top_k 0. Use 0 or more.");
  refuses({.temperature = -1},
          "[generate] temperature is -1. Use 0 for the most probable token, or a positive number.");
  refuses({.repetition_penalty = 0}, "[generate] repetition_penalty is 0. It must be positive.");
  refuses({.top_p = 0}, "[generate] top_p is 0, min_p 0. They must be on (0, 1] and [0, 1].");
  refuses({.min_p = 2}, "[generate] top_p is 1, min_p 2. They must be on (0, 1] and [0, 1].");
  CHECK_THROWS_WITH_AS(generate(read, 10, {}, {{0}, {}}),
                       "[generate] text 1 is empty. Begin it with a token.", UsageError);
  CHECK_THROWS_WITH_AS(generate(read, 1, {}, {{0}}),
                       "[generate] the context is 1. Texts need 2 tokens or more.", UsageError);
  const ReadTokens nan = always({0.5, std::numeric_limits<double>::quiet_NaN()});
  CHECK_THROWS_WITH_AS(generate(nan, 10, {}, {{0}}),
                       "[generate] a logit of text 0 is NaN after 1 tokens. Look for infinite "
                       "weights, or use a wider dtype.",
                       UsageError);
  KeyValueCache past{.room = 17};
  const NoGrad no_grad;
  CHECK_THROWS_WITH_AS(small_llama()(ones({1, 1}, i64), past),
                       "[Llama] the cache has room for 17 positions, the context is 16. Reserve 1 "
                       "to 16.",
                       UsageError);
}

TEST_CASE("decoders refuse sizes that do not fit") {
  CHECK_THROWS_WITH_AS(Llama({.layers = 0}), "[Llama] layers is 0. Use 1 or more.", UsageError);
  CHECK_THROWS_WITH_AS(Llama({.heads = 4, .key_heads = 3}),
                       "[Llama] heads 4 does not divide into 3 groups. Choose a divisor of 4.",
                       ShapeError);
  CHECK_THROWS_AS(Llama({.width = 10, .heads = 2, .key_heads = 1}), ShapeError);
  CHECK_THROWS_WITH_AS(Llama({.experts = 2, .experts_per_token = 3}),
                       "[Llama] experts_per_token is 3 of 2 experts. Use 1 to 2.", UsageError);
  CHECK_THROWS_AS(Llama({.window = -1}), UsageError);
  CHECK_THROWS_WITH_AS(small_llama().with_balance(ones({1, 2}, i64)),
                       "[Llama] the model has 0 experts to balance. Call the model itself.",
                       UsageError);
}

TEST_CASE("a mixture of experts under autocast chooses its experts in f32") {
  const Llama model = small_mixture();
  const Tensor tokens = randint(0, 50, {2, 12});
  const amp::Autocast region({.dtype = bf16});
  const Llama::Balanced out = model.with_balance(tokens);
  CHECK(out.balance.dtype() == f32);
  CHECK(out.logits.dtype() == bf16);
  (mean(cast(out.logits, f32)) + out.balance).backward();
  for (const auto& [name, x] : model.named_parameters()) {
    CAPTURE(name);
    CHECK(x.grad().defined());
    CHECK(x.grad().dtype() == f32);
  }
}

}  // namespace halftone::test::generate_test
