// E26. A small GPT reads texts in batches of 1, 2, 3 and 64, and generates them token by token with
// stored keys and values. Elsewhere kernels for few rows sum in another order than kernels for
// many, so that the probabilities of generation are not those of training (Horace He et al. 2025,
// "Defeating nondeterminism in LLM inference"; Qi et al. 2025, arXiv 2510.26788). With portable
// bits every row has the same bits in any batch, so the divergence of both is exactly 0.
#include <halftone/core/device.h>
#include <halftone/lab/experiments/experiments.h>
#include <halftone/lab/setting.h>
#include <halftone/lab/table.h>
#include <halftone/nn/models/gpt.h>

namespace halftone::lab {
namespace e26 {

constexpr int64_t texts = 64, length = 40, vocabulary = 60;
constexpr nn::models::GptOptions small{
    .vocabulary = vocabulary, .context = length, .layers = 2, .heads = 4, .width = 96};

/// Texts in which a token usually follows from the two before it.
Tensor texts_of(uint64_t seed) {
  manual_seed(seed);
  const std::vector<int64_t> noise =
      randint(0, 10 * vocabulary, {texts, length}).to_vector<int64_t>();
  std::vector<int64_t> tokens(noise.size());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const bool starts = i % length < 2 || noise[i] < vocabulary;
    tokens[i] =
        starts ? noise[i] % vocabulary : (3 * tokens[i - 1] + 5 * tokens[i - 2] + 1) % vocabulary;
  }
  return from_vector(tokens, {texts, length});
}

struct Mismatch {
  int64_t others = 0;     // logits of batches of 1, 2 and 3 that differ from those of 64
  double divergence = 0;  // KL of training's probabilities and generation's, mean over tokens
};

/// Trains 40 steps under a strategy, and reads texts that were not in the training data.
Mismatch measure(std::string_view strategy, bool portable) {
  const PortableBitsScope scope(portable);
  manual_seed(26);
  nn::models::Gpt model(small);
  optim::AdamW optimizer(model.parameters(), {.lr = 3e-3});
  amp::Training training(amp::Strategy::named(strategy), model, optimizer);
  for (uint64_t step = 0; step < 40; ++step) {
    const Tensor tokens = texts_of(step);
    training.zero_grad();
    const Tensor logits = training.forward(model, slice(tokens, 1, 0, length - 1));
    training.backward(
        cross_entropy(flatten(logits, 0, 1), flatten(slice(tokens, 1, 1, length), 0, 1)));
    training.step();
  }
  const NoGrad no_grad;
  model.eval();
  const Tensor tokens = texts_of(1000), all = training.forward(model, tokens);
  Mismatch result;
  for (const int64_t batch : {1, 2, 3}) {
    const Tensor few = training.forward(model, slice(tokens, 0, 0, batch));
    result.others += int64_t(sum(cast(few != slice(all, 0, 0, batch), f64)).item());
  }
  nn::models::KeyValueCache cache;
  const auto next = [&](const Tensor& token) { return model(token, cache); };
  for (int64_t place = 0; place < length; ++place) {
    const Tensor p = log_softmax(cast(select(all, 1, place), f64), -1),
                 generated = training.forward(next, slice(tokens, 1, place, place + 1)),
                 q = log_softmax(cast(select(generated, 1, 0), f64), -1);
    result.divergence += (sum(exp(p) * (p - q)) / double(texts * length)).item();
  }
  return result;
}

void run(Findings& found) {
  for (const bool portable : {false, true}) {
    Table table({portable ? "portable bits" : "fastest order, on this CPU",
                 "logits that depend on the batch", "KL of training and generation"});
    for (const char* strategy : {"fp32", "amp-bf16"}) {
      const Mismatch m = measure(strategy, portable);
      table.row({strategy, std::to_string(m.others), number(m.divergence, 3)});
      if (!portable) continue;
      found.exactly(std::string(strategy) + ", logits that depend on the batch", double(m.others),
                    0);
      found.exactly(std::string(strategy) + ", KL of training and generation", m.divergence, 0);
    }
    found.out() << table;
  }
}

}  // namespace e26

const Experiment found::e26{"E26",
                            "A model that generates token by token has the probabilities of its "
                            "training, to the bit, if a row's sums do not depend on the number of "
                            "rows.",
                            e26::run};

}  // namespace halftone::lab
