// Compares the two halves that forward can read from a split weight: the truncated upper 16 bits
// (IPEX), or the rounded ones (TransformerEngine). Both follow the f32 weights of their own
// gradients to the bit and cost the same bytes; they differ in the weights that the model computes
// with. Trains three models from the same weights on the same batches under f32, o2-bf16 (f32
// masters, weights rounded to nearest) and both splits. Prints, as means over seeds, the training
// loss over the last tenth of the steps, the held-out loss, and the distance of both from those of
// o2-bf16.
#include <cmath>
#include <cstdio>
#include <functional>
#include <iostream>
#include <memory>

#include <CLI/CLI.hpp>

#include <halftone/halftone.h>

namespace ht = halftone;

namespace {
struct Job {
  std::string name;
  std::function<std::unique_ptr<ht::nn::Layer>()> model;
  ht::data::DataLoader train, held_out;
  bool language = false;
};

struct Losses {
  double train = 0, held_out = 0;
};

ht::Tensor loss_of(const Job& job, const ht::Tensor& logits, const ht::Tensor& targets) {
  return job.language ? ht::cross_entropy(ht::flatten(logits, 0, 1), ht::flatten(targets))
                      : ht::cross_entropy(logits, targets);
}

Losses train(const Job& job, const ht::amp::Policy& strategy, uint64_t seed, int64_t steps,
             double lr) {
  ht::manual_seed(seed);
  const std::unique_ptr<ht::nn::Layer> model = job.model();
  ht::optim::AdamW adamw(model->parameters(), {.lr = lr, .weight_decay = 0.01});
  ht::amp::Training training = ht::amp::apply(strategy, *model, adamw);
  ht::data::DataLoaderOptions options = job.train.options();
  options.seed = seed;
  ht::data::DataLoader loader = job.train.with_options(options);
  ht::data::DataLoader::Iterator batch = loader.begin();
  Losses losses;
  const int64_t last = std::max<int64_t>(1, steps / 10);
  for (int64_t step = 0; step < steps; ++step, ++batch) {
    if (batch == loader.end()) batch = loader.begin();
    const ht::Tensor loss = loss_of(job, training.forward(*model, batch->inputs), batch->targets);
    training.zero_grad();
    training.backward(loss);
    training.step();
    if (step >= steps - last) losses.train += loss.item() / double(last);
  }
  const ht::NoGrad no_grad;
  double samples = 0;
  ht::data::DataLoader held_out = job.held_out;
  for (const auto& [inputs, targets] : held_out) {
    const auto n = double(inputs.size(0));
    losses.held_out += n * loss_of(job, training.forward(*model, inputs), targets).item();
    samples += n;
  }
  losses.held_out /= samples;
  return losses;
}

std::vector<Job> jobs(const std::string& text_file) {
  using ht::data::DataLoader, ht::data::Split;
  const auto fashion = [](Split split) { return ht::data::fashion_mnist({.split = split}); };
  const DataLoader images(fashion(Split::train),
                          {.batch_size = 128, .shuffle = true, .drop_last = true});
  const DataLoader test_images(fashion(Split::test), {.batch_size = 500});
  const std::string text = ht::data::read_text(text_file);
  const ht::data::CharacterTokenizer characters(text);
  const ht::data::TextSplit split = ht::data::split_text(ht::data::tokenize(characters, text), 0.1);
  const DataLoader windows(ht::data::TextDataset(split.train, {.context = 64, .stride = 7}),
                           {.batch_size = 16, .shuffle = true, .drop_last = true});
  const DataLoader rest(ht::data::TextDataset(split.validation, {.context = 64}),
                        {.batch_size = 16});
  const ht::nn::models::GptOptions gpt{.vocabulary = characters.vocabulary_size(),
                                       .context = 64,
                                       .layers = 2,
                                       .heads = 4,
                                       .width = 64};
  return {
      {"mlp",
       [] {
         return std::make_unique<ht::nn::Sequential>(ht::nn::Flatten(),
                                                     ht::nn::models::mlp({784, 256, 256, 10}));
       },
       images, test_images},
      {"lenet", [] { return std::make_unique<ht::nn::models::LeNet>(); }, images, test_images},
      {"gpt", [gpt] { return std::make_unique<ht::nn::models::Gpt>(gpt); }, windows, rest, true}};
}

struct Form {
  const char* name;
  ht::amp::Policy strategy;
};

std::vector<Form> forms() {
  ht::amp::Policy truncated = ht::amp::Policy::named("split-bf16"), rounded = truncated;
  truncated.form = ht::WeightForm::split, rounded.form = ht::WeightForm::split_rounded;
  return {{"fp32", ht::amp::Policy::named("fp32")},
          {"o2-bf16", ht::amp::Policy::named("o2-bf16")},
          {"split, truncated", truncated},
          {"split, rounded", rounded}};
}
}  // namespace

int main(int argc, char** argv) {
  int64_t steps = 300, seeds = 3;
  double lr = 1e-3;
  std::string text_file;
  CLI::App app(
      "Split weights with truncated and with rounded upper halves, compared with f32 masters.");
  app.add_option("--steps", steps)->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--seeds", seeds)->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--lr", lr)->capture_default_str();
  app.add_option("--text", text_file, "the text that the GPT learns")
      ->required()
      ->check(CLI::ExistingFile);
  CLI11_PARSE(app, argc, argv);
  try {
    std::printf("%-6s %-18s %10s %10s   %s\n", "model", "weights", "train", "held out",
                "largest distance from o2-bf16: train, held out");
    for (const Job& job : jobs(text_file)) {
      std::vector<Losses> masters;
      for (const Form& form : forms()) {
        Losses mean, distance;
        for (int64_t seed = 0; seed < seeds; ++seed) {
          const Losses one = train(job, form.strategy, uint64_t(seed), steps, lr);
          if (form.name == std::string("o2-bf16")) masters.push_back(one);
          mean.train += one.train / double(seeds), mean.held_out += one.held_out / double(seeds);
          if (masters.size() <= std::size_t(seed)) continue;
          const Losses& other = masters[std::size_t(seed)];
          distance.train = std::max(distance.train, std::abs(one.train - other.train));
          distance.held_out = std::max(distance.held_out, std::abs(one.held_out - other.held_out));
        }
        std::printf("%-6s %-18s %10.5f %10.5f   %.1e %.1e\n", job.name.c_str(), form.name,
                    mean.train, mean.held_out, distance.train, distance.held_out);
        std::fflush(stdout);
      }
    }
  } catch (const ht::Error& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
