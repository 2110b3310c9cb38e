// same_training KEY=VALUE...: runs small trainings whose steps have several batches, one after
// another. Prints a line for each: its name, the checksum of all of its data, its metrics. The
// lines must not depend on the number of processes.
//   strategy=NAME, model=NAME, optimizer=NAME   one of each; without: all strategies, in turn with
//                                               the models and optimizers
//   batches=K  epochs=N  max_steps=N  wire=NAME  directory=DIR  shard=0: every rank keeps all
//   average=1: validates averaged weights
//   device=NAME  clip=NORM: of AdamW  limit=N: of the batches of an epoch
//   fault=WHAT   what rank 1 does in the third step: see Fault
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <thread>

#include <unistd.h>
#include <zlib.h>

#include <halftone/halftone.h>

using namespace halftone;

namespace {
using Arguments = std::map<std::string, std::string>;

std::string value_of(const Arguments& arguments, const std::string& key, std::string otherwise) {
  const auto found = arguments.find(key);
  return found == arguments.end() ? std::move(otherwise) : found->second;
}

uint32_t sum_of(const optim::NamedTensors& state) {
  uLong sum = crc32(0, nullptr, 0);
  for (const auto& [name, x] : state) {
    const Tensor copy = x.to(Device::cpu()).clone();
    sum = crc32(sum, reinterpret_cast<const Bytef*>(name.data()), uInt(name.size()));
    sum = crc32(sum, reinterpret_cast<const Bytef*>(copy.raw_data()), uInt(copy.bytes()));
  }
  return uint32_t(sum);
}

/// An event for a process in the middle of a training.
struct Fault final : train::Callback {
  std::string what;
  explicit Fault(std::string w) : what(std::move(w)) {}

  bool on_loss(train::Trainer& trainer, const Tensor&) override {
    if (what == "hang" && trainer.rank() == 1 && trainer.position().step == 2)
      std::this_thread::sleep_for(std::chrono::hours(1));
    return true;
  }
  void on_batch_start(train::Trainer& trainer, data::Batch& batch) override {
    if (trainer.rank() != 1 || trainer.position().step != 2) return;
    if (what == "throw") fail<UsageError>("image", "the third batch is broken. Mend it.");
    if (what == "exit0") std::exit(0);
    if (what == "kill") raise(SIGKILL);
    if (what == "segv") raise(SIGSEGV);
    if (what == "slow") std::this_thread::sleep_for(std::chrono::milliseconds(100));
    if (what == "other" && !std::exchange(done_, true))
      distributed::largest(world(), "something else", 1);
    if (what == "overflow") batch.inputs = batch.inputs * 1e38F;
    if (what == "term" && !std::exchange(done_, true)) raise(SIGTERM);
  }

 private:
  bool done_ = false;
};

/// The last of 16 batches has 2 samples; a step of 12 batches is followed by one of 4.
constexpr int64_t samples = 47, batch_size = 3;

/// Returns the numbers of classes with about a third of them ignored, so that a batch's samples are
/// not the terms of its mean.
Tensor partly_ignored(const Tensor& classes) {
  return where(rand(classes.shape()) < 0.3, full({}, -100, i64), classes);
}

struct Case {
  std::unique_ptr<nn::Layer> model;
  std::unique_ptr<data::DataLoader> loader, validation;
  std::unique_ptr<optim::Optimizer> optimizer;
  bool of_tokens = false;
};

Case case_of(const std::string& model, const std::string& optimizer, int64_t size, Device device,
             uint64_t seed) {
  manual_seed(seed);
  Case c;
  Tensor inputs, targets;
  if (model == "gpt") {  // tied weights, dropout, embeddings
    c.of_tokens = true;
    const Tensor tokens = randint(0, 9, {samples, 7});
    inputs = views::contiguous(views::slice(tokens, 1, 0, 6));
    targets = partly_ignored(views::slice(tokens, 1, 1, 6));
    c.model = std::make_unique<nn::models::Gpt>(nn::models::GptOptions{
        .vocabulary = 9, .context = 6, .layers = 1, .heads = 2, .width = 16, .dropout = 0.1});
  } else if (model == "llama") {  // experts, which get other rows in each batch; shared heads
    c.of_tokens = true;
    const Tensor tokens = randint(0, 9, {samples, 7});
    inputs = views::contiguous(views::slice(tokens, 1, 0, 6));
    targets = partly_ignored(views::slice(tokens, 1, 1, 6));
    c.model = std::make_unique<nn::models::Llama>(nn::models::LlamaOptions{.vocabulary = 9,
                                                                           .context = 6,
                                                                           .layers = 1,
                                                                           .width = 16,
                                                                           .heads = 2,
                                                                           .key_heads = 1,
                                                                           .hidden = 12,
                                                                           .qk_norm = true,
                                                                           .experts = 4});
  } else if (model == "vit") {  // patches, a token of their class
    inputs = randn({samples, 1, 8, 8}), targets = randint(0, 4, {samples});
    c.model = std::make_unique<nn::models::Vit>(nn::models::VitOptions{
        .channels = 1, .classes = 4, .image = 8, .patch = 4, .layers = 1, .heads = 2, .width = 16});
  } else if (model == "resnet") {  // convolutions, batch norm
    inputs = randn({samples, 3, 8, 8}), targets = randint(0, 4, {samples});
    c.model = std::make_unique<nn::models::ResNet>(
        nn::models::ResNet::Block::basic, std::array<int64_t, 4>{1, 1, 1, 1},
        nn::models::ResNetOptions{.classes = 4, .width = 4, .cifar_stem = true});
  } else {  // dropout, batch norm over a vector; a weight that is sharded over several ranks
    inputs = randn({samples, 20}), targets = partly_ignored(randint(0, 4, {samples}));
    c.model = std::make_unique<nn::Sequential>(nn::Linear(20, 160), nn::BatchNorm1d(160),
                                               nn::Gelu(), nn::Dropout(0.2), nn::Linear(160, 4));
  }
  const data::TensorDataset all(inputs, targets);
  c.loader = std::make_unique<data::DataLoader>(
      all,
      data::DataLoaderOptions{.batch_size = size, .shuffle = true, .seed = 3, .device = device});
  c.validation = std::make_unique<data::DataLoader>(
      all, data::DataLoaderOptions{.batch_size = 5, .device = device});
  c.model->to(device);
  const std::vector<Tensor> parameters = c.model->parameters();
  if (optimizer == "sgd")
    c.optimizer =
        std::make_unique<optim::Sgd>(parameters, optim::SgdOptions{.lr = 0.02, .momentum = 0.9});
  else if (optimizer == "rmsprop")
    c.optimizer = std::make_unique<optim::Rmsprop>(parameters, optim::RmspropOptions{.lr = 1e-3});
  else c.optimizer = std::make_unique<optim::AdamW>(parameters, optim::AdamWOptions{.lr = 5e-3});
  return c;
}

void train_case(const std::string& strategy, const std::string& model, const std::string& optimizer,
                const Arguments& arguments) {
  const std::string fault = value_of(arguments, "fault", "");
  const int64_t size = fault == "alike" && world().rank() == 1 ? 2 : batch_size;
  const bool is_1 = world().rank() == 1;
  Case c = case_of(model, optimizer, size, device_named(value_of(arguments, "device", "cpu")),
                   fault == "data" && is_1 ? 8 : 7);
  distributed::Options options;
  if (const std::string wire = value_of(arguments, "wire", ""); !wire.empty())
    options.wire = distributed::WireFormat::named(wire);
  options.bucket_bytes = std::atoll(value_of(arguments, "bucket_bytes", "3000").c_str());
  options.shard_optimizer = value_of(arguments, "shard", "1") != "0";
  const std::string directory = value_of(arguments, "directory", "");
  const int64_t max_steps = std::atoll(value_of(arguments, "max_steps", "0").c_str());
  std::vector<std::shared_ptr<train::Callback>> callbacks{std::make_shared<Fault>(fault)};
  if (fault == "callbacks" && is_1) callbacks.push_back(std::make_shared<train::EarlyStopping>());
  else if (fault == "callbacks") callbacks.push_back(std::make_shared<train::WeightAverage>());
  if (arguments.contains("average"))
    callbacks.push_back(
        std::make_shared<train::WeightAverage>(train::WeightAverageOptions{.decay = 0.9}));
  train::Trainer trainer(
      c.of_tokens ? train::language_modeling(*c.model) : train::classification(*c.model),
      *c.optimizer,
      {.precision = strategy,
       .max_epochs = std::atoll(value_of(arguments, "epochs", "2").c_str()),
       .max_steps = max_steps,
       .accumulate_batches = std::atoll(value_of(arguments, "batches", "12").c_str()),
       .distributed = options,
       .clip_norm =
           optimizer == "adamw" ? std::atof(value_of(arguments, "clip", "1").c_str()) : 0.0,
       .schedule = [](int64_t) { return optim::LrSchedule::cosine(8); },
       .limit_train_batches = std::atoll(value_of(arguments, "limit", "0").c_str()),
       .directory = directory,
       .checkpoints = directory.empty()
                          ? train::CheckpointOptions{}
                          : train::CheckpointOptions{.every_steps = 1, .keep_last = 2},
       .resume = !directory.empty(),
       .log_every_steps = 1,
       .progress_bar = false,
       .model_summary = false,
       .callbacks = std::move(callbacks)});
  const train::FitResult result = trainer.fit(*c.loader, *c.validation);
  const uint32_t sum = sum_of(trainer.training().state_dict());
  if (trainer.rank() != 0) return;
  std::printf("%s %s %s %08x skipped %lld", strategy.c_str(), model.c_str(), optimizer.c_str(), sum,
              static_cast<long long>(trainer.training().skipped_steps()));
  for (const auto& [name, value] : result.metrics)  // to the last bit
    if (name.starts_with("val/") || name.starts_with("train/loss"))
      std::printf(" %s %.17g", name.c_str(), value);
  std::printf("\n");
}
}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const std::size_t equals = word.find('=');
    if (equals == std::string::npos) return 2;
    arguments[word.substr(0, equals)] = word.substr(equals + 1);
  }
  if (value_of(arguments, "fault", "") == "late")
    for (const char* variable : {"OMPI_COMM_WORLD_RANK", "PMI_RANK"})
      if (const char* const rank = std::getenv(variable); rank && std::string_view(rank) == "1")
        std::this_thread::sleep_for(std::chrono::hours(1));
  constexpr std::array models{"mlp", "resnet", "gpt", "llama", "vit"};
  constexpr std::array optimizers{"adamw", "sgd", "rmsprop"};
  try {
    if (arguments.contains("strategy")) {
      train_case(arguments["strategy"], value_of(arguments, "model", "mlp"),
                 value_of(arguments, "optimizer", "adamw"), arguments);
      return 0;
    }
    std::size_t i = 0;
    for (const std::string_view strategy : amp::Policy::names()) {
      train_case(std::string(strategy), models[i % models.size()], optimizers[i % 3], arguments);
      ++i;
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
