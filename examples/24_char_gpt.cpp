// Lesson 24: a language model on your own text. You will see a GPT learn to spell: it reads
// characters and predicts the next one. It is compared with a bigram model (which character follows
// which), the minimum that a model of text must beat. Works under any strategy.
#include <cmath>
#include <cstdio>
#include <iostream>

#include <halftone/halftone.h>

#include "program.h"

namespace ht = halftone;

namespace {

struct Arguments {
  // Texts that every Debian system has. The end of the last one, a tenth of all, is for validation.
  std::vector<std::string> text;
  std::string directory = "/usr/share/common-licenses", device = "cpu";
  std::vector<std::string> strategies{"amp-bf16"};
  ht::nn::models::GptOptions model{.context = 64, .layers = 4, .heads = 4, .width = 128};
  int64_t steps = 400, batch = 32, sample = 400;
  double lr = 3e-3, temperature = 0.8;
  uint64_t seed = 0;
};

void add_flags(Program& program, Arguments& to) {
  program.flag("--text", to.text, "files to train on; default: Debian's common licenses");
  program.device(to.device);
  program.list("--strategies", to.strategies, "any of amp/policy.h, separated by commas");
  program.flag("--layers", to.model.layers).within(1, 100);
  program.flag("--heads", to.model.heads).within(1, 100);
  program.flag("--width", to.model.width).within(1, 10000);
  program.flag("--context", to.model.context).within(2, 4096);
  program.flag("--dropout", to.model.dropout).within(0.0, 0.9);
  program.flag("--steps", to.steps).within(1, 1000000);
  program.flag("--batch", to.batch).within(1, 4096);
  program.flag("--lr", to.lr, "highest rate of AdamW").positive();
  program.flag("--sample", to.sample, "characters to write").within(0, 100000);
  program.flag("--temperature", to.temperature).positive();
  program.flag("--seed", to.seed, "seed of weights, batches and samples");
}

std::string read_all(const Arguments& a) {
  std::vector<std::string> files = a.text;
  for (const char* name : {"Apache-2.0", "Artistic", "GFDL-1.3", "LGPL-2.1", "MPL-2.0", "GPL-3"})
    if (a.text.empty()) files.push_back(a.directory + "/" + name);
  std::string text;
  for (const std::string& file : files) text += ht::data::read_text(file) + "\n\n";
  return text;
}

/// Returns the nats per character of a model that knows how often each character follows each
/// other.
double bigram_loss(const ht::data::TextSplit& split, int64_t vocabulary) {
  const auto train = split.train.to_vector<int64_t>(), test = split.validation.to_vector<int64_t>();
  std::vector<double> pairs(std::size_t(vocabulary * vocabulary), 1.0);  // every pair starts with a
                                                                         // count of 1
  std::vector<double> firsts(static_cast<std::size_t>(vocabulary), double(vocabulary));
  const auto pair = [&](int64_t a, int64_t b) { return std::size_t(a * vocabulary + b); };
  for (std::size_t i = 1; i < train.size(); ++i)
    ++pairs[pair(train[i - 1], train[i])], ++firsts[std::size_t(train[i - 1])];
  double loss = 0;
  for (std::size_t i = 1; i < test.size(); ++i)
    loss -= std::log(pairs[pair(test[i - 1], test[i])] / firsts[std::size_t(test[i - 1])]);
  return loss / double(test.size() - 1);
}

/// Continues a text from a newline, in the precision of the training. The model reads each
/// character once; when its context is full, it forgets the first half.
std::string sample(ht::amp::Training& training, ht::nn::models::Gpt& model,
                   const ht::data::CharacterTokenizer& characters, const Arguments& a) {
  model.eval();
  const auto read = [&](const ht::Tensor& tokens, ht::nn::models::KeyValueCache& past) {
    return training.forward([&](const ht::Tensor& x) { return model(x, past); }, tokens);
  };
  const auto texts = ht::nn::models::generate(
      read, a.model.context, ht::device_named(a.device), {characters.encode("\n")},
      {.max_tokens = a.sample, .temperature = a.temperature, .seed = a.seed});
  return "\n" + characters.decode(texts[0]);
}

/// Rises during the first twentieth of the steps, then falls along half a cosine.
ht::optim::LrSchedule rates(int64_t steps) {
  const int64_t warm_up = steps / 20 + 1;
  return ht::optim::LrSchedule::warm_up(
      warm_up, ht::optim::LrSchedule::cosine(std::max<int64_t>(steps - warm_up, 1), 0.05));
}

void train(const ht::amp::Policy& strategy, const ht::data::CharacterTokenizer& characters,
           const ht::data::TextSplit& split, const Arguments& a) {
  ht::manual_seed(a.seed);
  const ht::Device device = ht::device_named(a.device);
  ht::nn::models::Gpt model(a.model);
  model.to(device);
  ht::optim::AdamW adamw(model.parameters(),
                         {.lr = a.lr, .betas = {0.9, 0.99}, .weight_decay = 0.1});
  const ht::data::TextDataset windows(split.train, {.context = a.model.context, .stride = 7}),
      held_out(split.validation, {.context = a.model.context});
  ht::train::Trainer trainer(ht::train::language_modeling(model), adamw,
                             {.strategy = strategy,
                              .max_steps = a.steps,
                              .clip_norm = 1,
                              .schedule = rates,
                              .validate_every_epochs = 0,
                              .validate_every_steps = std::min<int64_t>(a.steps, 100),
                              .log_every_steps = 100,
                              .model_summary = false});
  std::cout << strategy << "\n" << model.parameter_count() << " parameters" << std::endl;
  trainer.fit(ht::data::DataLoader(windows, {.batch_size = a.batch,
                                             .shuffle = true,
                                             .drop_last = true,
                                             .seed = a.seed,
                                             .device = device}),
              ht::data::DataLoader(held_out, {.batch_size = 32, .device = device}));
  std::cout << "--- a sample\n" << sample(trainer.training(), model, characters, a) << "\n---\n\n";
}

void run(Arguments a) {
  const std::string text = read_all(a);
  const ht::data::CharacterTokenizer characters(text);
  const ht::data::TextSplit split = ht::data::split_text(ht::data::tokenize(characters, text), 0.1);
  a.model.vocabulary = characters.vocabulary_size();
  std::printf("%zu characters, %ld different ones; nats per character of a bigram model: %.3f\n\n",
              text.size(), long(a.model.vocabulary), bigram_loss(split, a.model.vocabulary));
  for (const std::string& name : a.strategies)
    train(ht::amp::Policy::named(name), characters, split, a);
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  Program program("Trains a GPT on text, character by character, and lets it write.");
  add_flags(program, arguments);
  return program.run(argc, argv, [&] { run(arguments); });
}

// Conclusion. A language model is a classifier of the next character. A comparison with bigrams
// says whether it has learned more than pairs. Nothing in the loop depends on the strategy.
//
// Exercises
// 1 (pencil). What is the loss of a model that gives every character the same probability?
// 2 (predict). Sample with --temperature 0.1 and with 2. What changes, and where in the code?
// 3 (implement). Compare full-bf16 and full-bf16-sr over 2000 steps. Which weights stop moving
//   first?
