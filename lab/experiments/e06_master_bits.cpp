// E6. Stores weights on bf16's grid with k extra bits, 16 of which give f32. The models are an MLP
// that learns a teacher, and an embedding with an MLP on top, for words with the frequencies of a
// language (Zipf). The optimizer is SGD as in recommendation models, from which the question comes:
// Split-SGD-BF16 (Kalamkar et al. 2020, arXiv 2005.04680) found that 8 bits are too few for DLRM.
// Errors are divided by those of f32 with the same seed.
#include <algorithm>
#include <cmath>

#include <halftone/lab/experiments/experiments.h>
#include <halftone/lab/setting.h>
#include <halftone/lab/table.h>

namespace halftone::lab {
namespace e06 {

constexpr int64_t steps = 2000, words = 2000, bag = 8, width = 16;
constexpr int extra_bits[]{0, 4, 8, 12, 16};

amp::Strategy kept_with(int bits) {
  if (bits == 16) return policy_of("f32 weights", "amp-bf16", "");
  return policy_of("short weights", "amp-bf16",
                   R"("optimizer": {"parameters": "e8m)" + std::to_string(7 + bits) + "\"}");
}

/// The mean of a bag of words' vectors, through an MLP.
struct BagOfWords final : nn::Module {
  nn::Embedding table{words, width};
  nn::Sequential mlp = nn::models::mlp({width, 64, 1});
  Tensor forward(const Tensor& picks) const { return mlp(mean(table(picks), {1})); }
  void describe(nn::Fields& field) override { field("table", table), field("mlp", mlp); }
};

/// Draws word i with a probability proportional to 1 / (i + 1).
Tensor rare_words(int64_t count) {
  const Tensor u = rand({count, bag});
  return minimum(exp(u * std::log(double(words) + 1)) - 1.0, full({}, double(words - 1))).to(i64);
}

double train(int bits, bool embedding, uint64_t seed) {
  manual_seed(seed);
  nn::Sequential teacher = nn::models::mlp({32, 128, 8}), student = nn::models::mlp({32, 128, 8});
  BagOfWords known, learns;
  nn::Module& model = embedding ? static_cast<nn::Module&>(learns) : student;
  optim::Sgd sgd(model.parameters(), {.lr = embedding ? 0.5 : 0.05, .momentum = 0.9});
  amp::Training training(kept_with(bits), model, sgd);
  const auto schedule = optim::LrSchedule::cosine(steps);
  const double rate = sgd.lr();
  const auto loss_of = [&](int64_t count) {
    const Tensor x = embedding ? rare_words(count) : randn({count, 32});
    Tensor wanted;
    {
      const NoGrad no_grad;
      wanted = embedding ? known.forward(x) * 8.0 : teacher(x);
    }
    if (!embedding) return mse(training.forward(student, x), wanted);
    const auto forward = [&](const Tensor& picks) { return learns.forward(picks); };
    return mse(training.forward(forward, x), wanted);
  };
  for (int64_t step = 0; step < steps; ++step) {
    sgd.set_lr(rate * schedule.at(step));
    training.zero_grad();
    training.backward(loss_of(64));
    training.step();
  }
  const NoGrad no_grad;
  manual_seed(1000 + seed);
  return loss_of(4096).item();
}

void run(Findings& found) {
  Table table({"error over f32", "k = 0", "4", "8", "12", "16"});
  const int seeds = found.thorough() ? 9 : 3;
  for (const bool embedding : {false, true}) {
    std::vector<std::string> cells{embedding ? "embedding of rare words, MLP" : "MLP"};
    std::vector<double> f32_errors;
    for (int seed = 1; seed <= seeds; ++seed)
      f32_errors.push_back(train(16, embedding, uint64_t(seed)));
    for (const int bits : extra_bits) {
      std::vector<double> ratios;
      for (int seed = 1; seed <= seeds; ++seed)
        ratios.push_back(bits == 16 ? 1
                                    : train(bits, embedding, uint64_t(seed)) /
                                          f32_errors[std::size_t(seed - 1)]);
      std::ranges::sort(ratios);
      const double middle = ratios[ratios.size() / 2];
      cells.push_back(fixed(middle, 4));
      const std::string what =
          std::string(embedding ? "embedding" : "MLP") + ", k = " + std::to_string(bits);
      if (bits == 0) found.at_least(what, middle, 1.05);
      if (bits == 8 || bits == 12) found.within(what, middle, 0.995, 1.005);
    }
    table.row(cells);
  }
  found.out() << table;
}

}  // namespace e06

const Experiment found::e6{
    "E6",
    "How many bits must a weight have beyond bf16's? 8 are enough for an MLP. For a table of rare "
    "words, 8 were found to be too few (Split-SGD-BF16, arXiv 2005.04680); this measures it.",
    e06::run};

}  // namespace halftone::lab
