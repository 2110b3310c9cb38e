// Lesson 31: a language model of today on your own text. You will see a folder of .txt files become
// a tokenizer, a Llama that is trained in mixed precision, text that it writes, and a folder that
// Hugging Face's transformers opens.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iostream>

#include <halftone/halftone.h>

#include "program.h"

namespace ht = halftone;
namespace fs = std::filesystem;

namespace {

struct Arguments {
  std::string text = "/usr/share/common-licenses", out{}, prompt = "This program is",
              strategy = "amp-bf16";
  ht::nn::models::LlamaOptions model{
      .context = 64, .layers = 4, .width = 128, .heads = 4, .key_heads = 2, .hidden = 344};
  int64_t vocabulary = 1024, steps = 300, batch = 16, sample = 60;
  double lr = 3e-3, temperature = 0.7;
  uint64_t seed = 0;
};

void add_flags(Program& program, Arguments& to) {
  program.flag("--text", to.text, "a file, or a folder of files; default: Debian's licenses");
  program.flag("--out", to.out, "the folder for the model and its tokenizer; default: none");
  program.flag("--vocabulary", to.vocabulary, "tokens that are learned").within(257, 100000);
  program.flag("--strategy", to.strategy, "a strategy, or a policy file");
  program.flag("--layers", to.model.layers).within(1, 100);
  program.flag("--width", to.model.width, "a multiple of twice the heads").within(8, 8192);
  program.flag("--context", to.model.context).within(2, 4096);
  program.flag("--steps", to.steps).within(1, 1000000);
  program.flag("--batch", to.batch).within(1, 4096);
  program.flag("--lr", to.lr, "highest rate of AdamW").positive();
  program.flag("--prompt", to.prompt, "what the text begins with");
  program.flag("--sample", to.sample, "tokens to write").within(0, 100000);
  program.flag("--temperature", to.temperature).not_negative();
  program.flag("--seed", to.seed, "seed of weights, batches and samples");
}

std::string read_all(const fs::path& place) {
  if (!fs::is_directory(place)) return ht::data::read_text(place);
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(place))
    if (entry.is_regular_file() && !entry.is_symlink()) files.push_back(entry.path());
  std::ranges::sort(files);  // a folder lists its files in any order
  std::string text;
  for (const fs::path& file : files) text += ht::data::read_text(file) + "\n\n";
  return text;
}

/// Rises during the first twentieth of the steps, then falls along half a cosine.
ht::optim::LrSchedule rates(int64_t steps) {
  const int64_t warm_up = steps / 20 + 1;
  return ht::optim::LrSchedule::warm_up(
      warm_up, ht::optim::LrSchedule::cosine(std::max<int64_t>(steps - warm_up, 1), 0.05));
}

void train(ht::nn::models::Llama& model, const ht::data::TextSplit& split, const Arguments& a) {
  ht::optim::AdamW adamw(model.parameters(),
                         {.lr = a.lr, .betas = {0.9, 0.99}, .weight_decay = 0.1});
  ht::train::Trainer trainer(ht::train::language_modeling(model), adamw,
                             {.strategy = ht::policy::named_or_read(a.strategy),
                              .max_steps = a.steps,
                              .clip_norm = 1,
                              .schedule = rates,
                              .validate_every_epochs = 0,
                              .validate_every_steps = std::min<int64_t>(a.steps, 100),
                              .log_every_steps = 100,
                              .model_summary = false});
  const ht::data::TextDataset windows(split.train, {.context = a.model.context, .stride = 7}),
      held_out(split.validation, {.context = a.model.context});
  trainer.fit(
      ht::data::DataLoader(
          windows, {.batch_size = a.batch, .shuffle = true, .drop_last = true, .seed = a.seed}),
      ht::data::DataLoader(held_out, {.batch_size = 32}));
}

void run(Arguments a) {
  // 1. Words become tokens: the most frequent pairs of bytes are merged, again and again.
  const std::string text = read_all(a.text);
  const auto tokenizer =
      ht::data::BytePairTokenizer::train(text, {.vocabulary_size = a.vocabulary,
                                                .special_tokens = {"<|endoftext|>"},
                                                .splitting = ht::data::Splitting::llama3});
  const ht::Tensor tokens = ht::data::tokenize(tokenizer, text);
  a.model.vocabulary = tokenizer.vocabulary_size();
  std::printf("%zu bytes, %ld tokens of %ld kinds\n", text.size(), long(tokens.numel()),
              long(a.model.vocabulary));

  // 2. The model, trained on nine tenths of the text.
  ht::manual_seed(a.seed);
  ht::nn::models::Llama model(a.model);
  std::cout << model.parameter_count() << " parameters, " << a.strategy << std::endl;
  train(model, ht::data::split_text(tokens, 0.1), a);

  // 3. The text that it writes.
  model.eval();
  const auto texts = ht::nn::models::generate(
      model, {tokenizer.encode(a.prompt)},
      {.max_tokens = a.sample, .temperature = a.temperature, .top_p = 0.95, .seed = a.seed});
  std::cout << "--- a sample\n" << a.prompt << tokenizer.decode(texts[0]) << "\n---\n";

  // 4. A folder for transformers: AutoModelForCausalLM.from_pretrained(folder), and
  // PreTrainedTokenizerFast(tokenizer_file=folder + "/tokenizer.json").
  if (a.out.empty()) return;
  ht::nn::models::save_llama(model, a.out);
  tokenizer.save(fs::path(a.out) / "tokenizer.json");
  std::cout << "saved in " << a.out << ": config.json, model.safetensors, tokenizer.json\n";
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  Program program("Trains a tokenizer and a Llama on text, lets it write, and saves both.");
  add_flags(program, arguments);
  return program.run(argc, argv, [&] { run(arguments); });
}

// Conclusion. Text, tokens, model and samples are four calls. The precision is one word of the
// Trainer's options, and the weights that are saved are f32 under every autocast strategy.
//
// Exercises
// 1 (pencil). How many bytes has a token of this text on average? What would a vocabulary of 257
//   tokens give?
// 2 (predict). Train with --strategy mxfp8. Which parts stay in bf16? `halftone-lab show mxfp8
//   --workload llama_tiny` tells.
// 3 (implement). Give the model 8 experts (docs/decoders.md), and add the loss of balance.
