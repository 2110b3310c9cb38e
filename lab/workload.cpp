// The built-in workloads. They read their data only when it is used, so that a policy's effect on a
// model can be shown without data.
#include <halftone/lab/workload.h>

#include <algorithm>
#include <cmath>

#include <halftone/autograd/ops.h>
#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/core/memory.h>
#include <halftone/core/random.h>
#include <halftone/core/tensor.h>
#include <halftone/data/data_loader.h>
#include <halftone/data/sets.h>
#include <halftone/data/text.h>
#include <halftone/lab/workload_data.h>
#include <halftone/nn/conv.h>
#include <halftone/nn/layers.h>
#include <halftone/nn/models/gpt.h>
#include <halftone/nn/models/llama.h>
#include <halftone/nn/models/models.h>
#include <halftone/nn/module.h>
#include <halftone/nn/rnn.h>
#include <halftone/optim/optimizer.h>
#include <halftone/optim/optimizers.h>
#include <halftone/amp/policy.h>
#include <halftone/train/checkpoints.h>
#include <halftone/train/metrics.h>
#include <halftone/train/task.h>

namespace halftone::lab {

namespace {

using data::DataLoader;

std::function<DataLoader()> loader_of(data::TensorDataset dataset,
                                      data::DataLoaderOptions options) {
  return [dataset = std::move(dataset), options] { return DataLoader(dataset, options); };
}

/// x + f(norm(x)): a step of a residual network on vectors.
struct ResidualBlock final : nn::Layer {
  nn::LayerNorm norm;
  nn::Linear up, down;
  explicit ResidualBlock(int64_t width)
      : norm(width), up(width, 2 * width), down(2 * width, width) {}
  Tensor forward(const Tensor& x) const override { return x + down(gelu(up(norm(x)))); }
  void describe(nn::Fields& field) override {
    field("norm", norm), field("up", up), field("down", down);
  }
};

/// Regression on the output of a fixed network of the same kind, for normal inputs.
Workload student_of(const nn::Layer& teacher, std::unique_ptr<nn::Layer> student, int64_t inputs,
                    uint64_t seed) {
  const NoGrad no_grad;
  const Tensor x = randn({4096, inputs}), y = teacher(x).detach();
  const Tensor x_held = randn({1024, inputs}), y_held = teacher(x_held).detach();
  return {.task = train::regression(*student),
          .model = std::move(student),
          .train = loader_of({x, y}, {.batch_size = 64, .shuffle = true, .seed = seed}),
          .validation = loader_of({x_held, y_held}, {.batch_size = 256, .seed = seed}),
          .example = data::Batch{views::slice(x, 0, 0, 64), views::slice(y, 0, 0, 64)},
          .lr = 3e-3};
}

Workload student_teacher(uint64_t seed) {
  const nn::Sequential teacher = nn::models::mlp({32, 128, 8});
  return student_of(teacher, std::make_unique<nn::Sequential>(nn::models::mlp({32, 128, 8})), 32,
                    seed);
}

Workload residual_mlp(uint64_t seed) {
  const auto network = [] {
    // The layers are made from the last to the first: figures in docs/ depend on this order.
    nn::Linear out(64, 16);
    ResidualBlock fourth(64), third(64), second(64), first(64);
    return nn::Sequential{nn::Linear(64, 64), std::move(first),  std::move(second),
                          std::move(third),   std::move(fourth), nn::LayerNorm(64),
                          std::move(out)};
  };
  const nn::Sequential teacher = network();
  return student_of(teacher, std::make_unique<nn::Sequential>(network()), 64, seed);
}

/// Models of 0.1 to 3 million parameters for laws of the loss.
constexpr std::pair<const char*, int64_t> wave_sizes[]{
    {"waves_100k", 310}, {"waves_300k", 540}, {"waves_1m", 990}, {"waves_3m", 1720}};

/// Regression on sines of sines of 8 numbers. Targets have normal noise with a variance of 0.01,
/// which is the least loss.
Workload waves(uint64_t seed, int64_t width) {
  const NoGrad no_grad;
  constexpr int64_t inputs = 8, outputs = 8, samples = 2048 * 128, held = 4096;
  // The function is the same for all seeds and sizes.
  manual_seed(314);
  const Tensor first = randn({inputs, 64}), second = randn({64, outputs});
  manual_seed(seed);
  auto student = std::make_unique<nn::Sequential>(nn::models::mlp({inputs, width, width, outputs}));
  const auto targets = [&](const Tensor& x) {
    const Tensor clean = sin(matmul(sin(matmul(x, first)), second) * 0.25);
    return (clean + randn(clean.shape()) * 0.1).detach();
  };
  const Tensor x = randn({samples, inputs}), x_held = randn({held, inputs});
  return {.task = train::regression(*student),
          .model = std::move(student),
          .train = loader_of({x, targets(x)}, {.batch_size = 128, .shuffle = true, .seed = seed}),
          .validation = loader_of({x_held, targets(x_held)}, {.batch_size = 512, .seed = seed}),
          .example = data::Batch{views::slice(x, 0, 0, 128), targets(views::slice(x, 0, 0, 128))},
          .lr = 0.54 / double(width),  // wider models need lower rates
          .schedule = [](int64_t steps) { return optim::LrSchedule::cosine(steps, 0.05); }};
}

std::function<DataLoader()> fashion(data::Split split, uint64_t seed) {
  return [split, seed] {
    const bool trains = split == data::Split::train;
    return DataLoader(
        data::fashion_mnist({.split = split}),
        {.batch_size = trains ? 128 : 500, .shuffle = trains, .drop_last = trains, .seed = seed});
  };
}

Workload on_fashion_mnist(std::unique_ptr<nn::Layer> model, uint64_t seed) {
  return {.task = train::classification(*model),
          .model = std::move(model),
          .train = fashion(data::Split::train, seed),
          .validation = fashion(data::Split::test, seed),
          .example = data::Batch{randn({128, 1, 28, 28}), randint(0, 10, {128})},
          .lr = 1e-3};
}

/// Flattens images to vectors.
struct FlatMlp final : nn::Layer {
  nn::Sequential mlp = nn::models::mlp({784, 256, 128, 10});
  Tensor forward(const Tensor& x) const override { return mlp(flatten(x, 1, -1)); }
  void describe(nn::Fields& field) override { field("mlp", mlp); }
};

constexpr int64_t context = 64;

optim::LrSchedule warm_up_and_cosine(int64_t steps) {
  const int64_t rising = steps / 20 + 1;
  return optim::LrSchedule::warm_up(
      rising, optim::LrSchedule::cosine(std::max<int64_t>(steps - rising, 1), 0.05));
}

/// Returns a model of the next character, with batches of a text that every installation has.
template <class Model>
Workload text_workload(std::unique_ptr<Model> model, uint64_t seed, int64_t batch) {
  return {.task = train::language_modeling(*model),
          .model = std::move(model),
          .train =
              [seed, batch] {
                return DataLoader(
                    data::TextDataset(license_text().train, {.context = context, .stride = 7}),
                    {.batch_size = batch, .shuffle = true, .drop_last = true, .seed = seed});
              },
          .validation =
              [seed] {
                return DataLoader(
                    data::TextDataset(license_text().validation, {.context = context}),
                    {.batch_size = 32, .seed = seed});
              },
          .example = data::Batch{randint(0, characters, {batch, context}),
                                 randint(0, characters, {batch, context})}};
}

/// The same for a decoder, with what decoders are trained with.
template <class Model> Workload decoder(std::unique_ptr<Model> model, uint64_t seed, double lr) {
  Workload made = text_workload(std::move(model), seed, 16);
  made.optimizer = [](std::vector<Tensor> parameters, double rate) {
    return std::make_unique<optim::AdamW>(
        std::move(parameters),
        optim::AdamWOptions{.lr = rate, .betas = {0.9, 0.99}, .weight_decay = 0.1});
  };
  made.lr = lr, made.schedule = warm_up_and_cosine, made.clip_norm = 1;
  return made;
}

Workload gpt_of(uint64_t seed, int64_t layers, int64_t width) {
  return decoder(std::make_unique<nn::models::Gpt>(nn::models::GptOptions{.vocabulary = characters,
                                                                          .context = context,
                                                                          .layers = layers,
                                                                          .heads = 4,
                                                                          .width = width}),
                 seed, 3e-3);
}

constexpr nn::models::LlamaOptions tiny_llama{.vocabulary = characters,
                                              .context = context,
                                              .layers = 4,
                                              .width = 128,
                                              .heads = 4,
                                              .key_heads = 2,
                                              .hidden = 512};

Workload llama_tiny(uint64_t seed) {
  return decoder(std::make_unique<nn::models::Llama>(tiny_llama), seed, 3e-3);
}
Workload llama_small(uint64_t seed) {
  nn::models::LlamaOptions options = tiny_llama;
  options.layers = 8, options.width = 320, options.heads = 8, options.key_heads = 4;
  options.hidden = 864;
  return decoder(std::make_unique<nn::models::Llama>(options), seed, 1e-3);
}

/// Adds the loss of balance to a training's loss, not to a validation's.
Workload llama_moe(uint64_t seed) {
  nn::models::LlamaOptions options = tiny_llama;
  options.experts = 8, options.hidden = 256;
  auto model = std::make_unique<nn::models::Llama>(options);
  const nn::models::Llama* const llama = model.get();
  Workload made = decoder(std::move(model), seed, 3e-3);
  const auto balance = std::make_shared<Tensor>();
  made.task.forward = [llama, balance](const Tensor& tokens) {
    nn::models::Llama::Balanced result = llama->with_balance(tokens);
    *balance = result.balance;
    return result.logits;
  };
  made.task.loss = [balance, loss = made.task.loss](const Tensor& logits, const Tensor& targets) {
    const Tensor of_tokens = loss(logits, targets);
    return grad_enabled() ? of_tokens + std::exchange(*balance, {}) * 0.01 : of_tokens;
  };
  return made;
}

/// Patches of 4 x 4 as 49 tokens.
constexpr nn::models::VitOptions tiny_vit{
    .channels = 1, .classes = 10, .image = 28, .patch = 4, .layers = 4, .heads = 4, .width = 64};

Workload vit_tiny(uint64_t seed) {
  Workload made = on_fashion_mnist(std::make_unique<nn::models::Vit>(tiny_vit), seed);
  made.schedule = warm_up_and_cosine, made.clip_norm = 1;
  return made;
}

Workload synthetic(const std::string& name, uint64_t seed) {
  SyntheticWorkload made = make_synthetic(name, {}, seed);
  const data::Batch batch{made.inputs, made.targets};
  return {.task = made.inputs.dtype() == i64 ? train::language_modeling(*made.model)
                                             : train::classification(*made.model),
          .model = std::move(made.model),
          .train = loader_of({batch.inputs, batch.targets},
                             {.batch_size = batch.inputs.size(0), .seed = seed}),
          .example = batch};
}

/// Returns the model's name: "resnet" for "resnet18_cifar".
std::string model_in(const std::string& synthetic) {
  for (const std::string_view model : policy::model_names())
    if (synthetic.starts_with(model)) return std::string(model);
  return "";
}

}  // namespace

std::vector<NamedWorkload> built_in_workloads() {
  std::vector<NamedWorkload> all{
      {"student_teacher", "an MLP learns what another one of its shape, 32-128-8, says",
       student_teacher, "mlp"},
      {"residual_mlp", "a network of four residual blocks of width 64 learns another of its shape",
       residual_mlp, "mlp"},
      {"mlp", "784-256-128-10 on Fashion-MNIST",
       [](uint64_t seed) { return on_fashion_mnist(std::make_unique<FlatMlp>(), seed); }, "mlp"},
      {"lenet", "a small convolutional network on Fashion-MNIST",
       [](uint64_t seed) { return on_fashion_mnist(std::make_unique<nn::models::LeNet>(), seed); },
       "lenet"},
      {"gpt_tiny", "a GPT of 4 layers, width 128, on the characters of Debian's license texts",
       [](uint64_t seed) { return gpt_of(seed, 4, 128); }, "gpt"},
      {"gpt_small", "as gpt_tiny, of 3 layers, width 96",
       [](uint64_t seed) { return gpt_of(seed, 3, 96); }, "gpt"},
      {"llama_tiny", "a Llama of 1 million parameters on the text of gpt_tiny", llama_tiny,
       "llama"},
      {"llama_small", "a Llama of 9 million parameters on the text of gpt_tiny", llama_small,
       "llama"},
      {"llama_moe", "as llama_tiny, with 8 experts of which a token sees 2", llama_moe, "llama"},
      {"vit_tiny", "a vision transformer of 4 layers, width 64, on Fashion-MNIST", vit_tiny,
       "vit"}};
  for (const auto& [name, width] : wave_sizes)
    all.push_back({name,
                   "an MLP with two hidden layers of width " + std::to_string(width) +
                       " learns waves with noise, from samples that never repeat in 2,000 steps",
                   [width = width](uint64_t seed) { return waves(seed, width); }, "mlp"});
  std::ranges::move(small_real_workloads(), std::back_inserter(all));
  for (const std::string& name : synthetic_names()) {
    const auto known = [&](const NamedWorkload& w) { return w.name == name; };
    if (std::ranges::none_of(all, known))
      all.push_back({name, "as bench/train_step has it, on noise",
                     [name](uint64_t seed) { return synthetic(name, seed); }, model_in(name),
                     true});
  }
  return all;
}

std::optional<NamedWorkload> workload_named(const std::string& name,
                                            const std::vector<NamedWorkload>& own) {
  std::vector<NamedWorkload> all = own;
  std::ranges::move(built_in_workloads(), std::back_inserter(all));
  const auto at = std::ranges::find(all, name, &NamedWorkload::name);
  return at == all.end() ? std::nullopt : std::optional(*at);
}

std::string model_of(const std::string& workload, const std::vector<NamedWorkload>& own) {
  const auto named = workload_named(workload, own);
  return named ? named->model : "";
}

bool trains_on_noise(const std::string& workload, const std::vector<NamedWorkload>& own) {
  const auto named = workload_named(workload, own);
  return named && named->noise;
}

Workload make_workload(const std::string& name, uint64_t seed,
                       const std::vector<NamedWorkload>& own) {
  std::vector<NamedWorkload> all = own;
  std::ranges::move(built_in_workloads(), std::back_inserter(all));
  std::vector<std::string_view> names;
  for (const NamedWorkload& workload : all) {
    names.push_back(workload.name);
    if (workload.name != name) continue;
    if (!workload.make) fail<UsageError>("workload", name, " has no function `make`. Give it one.");
    manual_seed(seed);
    Workload made = workload.make(seed);
    if (!made.model || !made.train)
      fail<UsageError>("workload", name, " has no ", made.model ? "training data" : "model",
                       ". Give it one.");
    return made;
  }
  fail_unknown_name("workload", "workload", name, names);
}

data::Batch example_of(const Workload& workload) {
  if (workload.example) return *workload.example;
  DataLoader loader = workload.train();
  return *loader.begin();
}

std::unique_ptr<optim::Optimizer> optimizer_of(const Workload& workload) {
  if (workload.optimizer) return workload.optimizer(workload.model->parameters(), workload.lr);
  return std::make_unique<optim::AdamW>(workload.model->parameters(),
                                        optim::AdamWOptions{.lr = workload.lr});
}

amp::Training training_of(const amp::Policy& strategy, const Workload& workload,
                          optim::Optimizer& optimizer) {
  amp::Training training = amp::apply(strategy, *workload.model, optimizer);
  if (strategy.wire == distributed::WireFormat{}) return training;
  if (world().size() > 1)
    fail<UsageError>("halftone-lab", "under ", strategy.name, " gradients travel in ",
                     name(strategy.wire), ", and there are ", world().size(),
                     " processes. Start one: it computes what they would.");
  training.train_together();
  return training;
}

void begin_step(amp::Training& training, int64_t step) {
  if (training.trains_together()) training.begin_batch(step);
}

Tensor loss_of(const Workload& workload, amp::Training& training, const data::Batch& batch) {
  return train::loss_of(workload.task, train::outputs_of(workload.task, training, batch), batch);
}

void train_steps(const Workload& workload, amp::Training& training, int64_t steps,
                 const std::function<void(int64_t step, const Tensor& loss)>& after) {
  data::DataLoader loader = workload.train();
  for (int64_t step = 0; step < steps;) {
    const int64_t before = step;
    for (const data::Batch& batch : loader) {
      training.zero_grad();
      begin_step(training, step);
      const Tensor loss = loss_of(workload, training, batch);
      training.backward(loss);
      if (workload.clip_norm > 0) training.clip_grad_norm(workload.clip_norm);
      training.step();
      if (after) after(step, loss);
      if (++step == steps) return;
    }
    if (step == before)
      fail<UsageError>("workload",
                       "the training data have no batch. Add some, or use a smaller batch_size.");
  }
}

// The names of choices, and the objects that they create.

namespace {
using optim::LrSchedule;
using Made = std::unique_ptr<optim::Optimizer>;

struct NamedOptimizer {
  std::string_view name;
  Made (*make)(std::vector<Tensor> parameters, double lr);
};

template <class Optimizer, class Options> Made made(std::vector<Tensor> parameters, double lr) {
  return std::make_unique<Optimizer>(std::move(parameters), Options{.lr = lr});
}
Made with_momentum(std::vector<Tensor> parameters, double lr) {
  return std::make_unique<optim::Sgd>(std::move(parameters),
                                      optim::SgdOptions{.lr = lr, .momentum = 0.9});
}

constexpr NamedOptimizer optimizers[] = {
    {"adamw", made<optim::AdamW, optim::AdamWOptions>},
    {"adam", made<optim::Adam, optim::AdamOptions>},
    {"sgd", with_momentum},
    {"rmsprop", made<optim::Rmsprop, optim::RmspropOptions>},
    {"lion", made<optim::Lion, optim::LionOptions>},
    {"adagrad", made<optim::Adagrad, optim::AdagradOptions>},
    {"nadam", made<optim::NAdam, optim::NAdamOptions>},
    {"radam", made<optim::RAdam, optim::RAdamOptions>},
    {"adafactor", made<optim::Adafactor, optim::AdafactorOptions>},
    {"lamb", made<optim::Lamb, optim::LambOptions>},
    {"muon", made<optim::Muon, optim::MuonOptions>}};

struct NamedSchedule {
  std::string_view name;
  LrSchedule (*make)(int64_t steps);
};

constexpr NamedSchedule schedules[] = {
    {"constant", [](int64_t) { return LrSchedule::constant(); }},
    {"linear", [](int64_t steps) { return LrSchedule::linear(steps); }},
    {"cosine", [](int64_t steps) { return LrSchedule::cosine(steps); }},
    {"warm_up_cosine",
     [](int64_t steps) {
       const int64_t rising = steps / 20 + 1;
       return LrSchedule::warm_up(rising, LrSchedule::cosine(std::max<int64_t>(steps - rising, 1)));
     }},
    {"one_cycle",
     [](int64_t steps) { return LrSchedule::one_cycle(std::max<int64_t>(steps, 2)); }}};

template <class Entry, std::size_t Count>
std::vector<std::string_view> names_of(const Entry (&all)[Count]) {
  std::vector<std::string_view> names;
  for (const Entry& entry : all) names.push_back(entry.name);
  return names;
}

template <class Entry, std::size_t Count>
const Entry& named(const Entry (&all)[Count], std::string_view kind, std::string_view name) {
  for (const Entry& entry : all)
    if (entry.name == name) return entry;
  fail_unknown_name("run", kind, name, names_of(all));
}

/// Returns " Did you mean ...?" with the entry of the path's folder that is nearest; "" if none is
/// near.
std::string nearest_name_next_to(const std::filesystem::path& path) {
  std::filesystem::path place = path;
  if (!place.has_filename()) place = place.parent_path();
  std::vector<std::string> found;
  std::error_code none;
  const std::filesystem::path folder = place.has_parent_path() ? place.parent_path() : ".";
  for (std::filesystem::directory_iterator at(folder, none), end; !none && at != end;
       at.increment(none))
    found.push_back(at->path().filename().string());
  std::ranges::sort(found);
  const std::vector<std::string_view> names(found.begin(), found.end());
  const std::string text = suggestion(place.filename().string(), names);
  return text.starts_with("Did you mean") ? ' ' + text : "";
}
}  // namespace

std::span<const std::string_view> optimizer_names() {
  static const std::vector<std::string_view> names = names_of(optimizers);
  return names;
}
std::span<const std::string_view> schedule_names() {
  static const std::vector<std::string_view> names = names_of(schedules);
  return names;
}

void choose(Workload& workload, const Choices& choices) {
  if (choices.lr != 0) {
    if (!(choices.lr > 0) || !std::isfinite(choices.lr))
      fail<UsageError>("run", "the learning rate is ", choices.lr, ". Use one above 0.");
    workload.lr = choices.lr;
  }
  if (!choices.optimizer.empty())
    workload.optimizer = named(optimizers, "optimizer", choices.optimizer).make;
  if (!choices.schedule.empty())
    workload.schedule = named(schedules, "schedule", choices.schedule).make;
}

optim::NamedTensors trained_state(const std::filesystem::path& from) {
  std::filesystem::path checkpoint = from;
  if (std::filesystem::is_regular_file(from)) return nn::load_safetensors(from).tensors;
  if (std::filesystem::is_directory(from / "checkpoints")) {
    const auto latest = train::latest_checkpoint(from / "checkpoints");
    if (!latest)
      fail<UsageError>("run", "no checkpoint in ", (from / "checkpoints").string(),
                       " is valid. Begin with another run.");
    checkpoint = latest->path;
  } else if (!std::filesystem::is_directory(from)) {
    fail<UsageError>("run", "there is no ", from.string(),
                     " to begin with. Give a run's folder, one of its checkpoints, or a file of "
                     "Training::save().",
                     nearest_name_next_to(from));
  } else if (!std::filesystem::is_regular_file(from / "manifest.json")) {
    fail<UsageError>("run", from.string(),
                     " has neither checkpoints/ nor manifest.json, so it has no trained state. "
                     "Give a run's folder with its checkpoints/ (halftone-lab run --out makes "
                     "them), one of its checkpoints, or a file of Training::save().");
  }
  optim::NamedTensors state = train::load_checkpoint(checkpoint).tensors;
  std::erase_if(state, [](const auto& entry) {
    return entry.first.starts_with("scheduler.") || entry.first.starts_with("others.");
  });
  return state;
}

void start_from(const optim::NamedTensors& state, amp::Training& training) {
  const std::vector<double> rates = train::rates_of(training.optimizer());
  const RandomKey random = default_generator().state();
  training.load_state_dict(state, amp::Convert::rounding);
  train::set_rates(training.optimizer(), rates);
  default_generator().set_state(random);
}

// Models and batches of the workloads.

double gflop_of_step(double samples, const std::vector<double>& multiply_adds) {
  double total = 0;
  for (std::size_t i = 0; i < multiply_adds.size(); ++i)
    total += (i == 0 ? 2 : 3) * 2 * samples * multiply_adds[i];
  return total * 1e-9;
}

namespace {

SyntheticWorkload mlp(const std::string& name, const std::vector<int64_t>& sizes, int64_t batch) {
  std::vector<double> products;
  for (std::size_t i = 0; i + 1 < sizes.size(); ++i)
    products.push_back(double(sizes[i] * sizes[i + 1]));
  auto model = std::make_unique<nn::Sequential>(nn::models::mlp(sizes));
  const MemoryScope scope(MemoryUse::input);
  return {name, std::move(model), randn({batch, sizes.front()}), randint(0, sizes.back(), {batch}),
          gflop_of_step(double(batch), products)};
}

SyntheticWorkload lenet() {
  auto model = std::make_unique<nn::models::LeNet>();
  const MemoryScope scope(MemoryUse::input);
  return {"lenet", std::move(model), randn({128, 1, 28, 28}), randint(0, 10, {128}),
          gflop_of_step(128, {784 * 32 * 9, 196 * 64 * 288, 3136 * 128, 128 * 10})};
}

/// Counts the convolutions of ResNet-18 on images of `side`, and its linear layer.
SyntheticWorkload resnet18(const std::string& name, const nn::models::ResNetOptions& o,
                           int64_t batch, int64_t side) {
  double per_image = 0;
  const auto conv = [&](double in, double out, double kernel, double out_side) {
    per_image += in * out * kernel * kernel * out_side * out_side;
  };
  double place = o.cifar_stem ? double(side) : double(side / 2), width = 64;
  conv(3, width, o.cifar_stem ? 3 : 7, place);
  const double stem = per_image;
  if (!o.cifar_stem) place /= 2;
  for (int stage = 0; stage < 4; ++stage) {
    const double in = stage == 0 ? width : width / 2;
    if (stage > 0) place /= 2, conv(in, width, 1, place);
    conv(in, width, 3, place);
    for (int i = 0; i < 3; ++i) conv(width, width, 3, place);
    if (stage < 3) width *= 2;
  }
  per_image += width * double(o.classes);
  auto model = std::make_unique<nn::models::ResNet>(nn::models::resnet18(o));
  const MemoryScope scope(MemoryUse::input);
  return {name, std::move(model), randn({batch, 3, side, side}), randint(0, o.classes, {batch}),
          gflop_of_step(double(batch), {stem, per_image - stem})};
}

/// Counts a decoder's linear maps, its head, and the two products of causal attention, of which
/// half is masked.
SyntheticWorkload gpt(const std::string& name, const nn::models::GptOptions& o, int64_t batch,
                      int64_t length) {
  const auto width = double(o.width);
  const double per_token =
      double(o.layers) * width * (12 * width + double(length)) + double(o.vocabulary) * width;
  auto model = std::make_unique<nn::models::Gpt>(o);
  const MemoryScope scope(MemoryUse::input);
  return {name, std::move(model), randint(0, o.vocabulary, {batch, length}),
          randint(0, o.vocabulary, {batch, length}),
          gflop_of_step(double(batch * length), {0, per_token})};
}

/// The same for a Llama: its keys and values have fewer heads, and its units three matrices.
SyntheticWorkload llama(const std::string& name, const nn::models::LlamaOptions& o, int64_t batch,
                        int64_t length) {
  const auto width = double(o.width), keys = width / double(o.heads) * double(o.key_heads);
  const double per_layer =
      width * (2 * width + 2 * keys + 3 * double(o.hidden)) + width * double(length);
  const double per_token = double(o.layers) * per_layer + double(o.vocabulary) * width;
  auto model = std::make_unique<nn::models::Llama>(o);
  const MemoryScope scope(MemoryUse::input);
  return {name, std::move(model), randint(0, o.vocabulary, {batch, length}),
          randint(0, o.vocabulary, {batch, length}),
          gflop_of_step(double(batch * length), {0, per_token})};
}

SyntheticWorkload vit(const std::string& name, const nn::models::VitOptions& o, int64_t batch) {
  const auto width = double(o.width);
  const double patches = double(o.image / o.patch) * double(o.image / o.patch);
  const double stem = patches * width * double(o.channels * o.patch * o.patch);
  const double tokens = patches + 1;
  const double layers = double(o.layers) * tokens * width * (12 * width + 2 * tokens);
  auto model = std::make_unique<nn::models::Vit>(o);
  const MemoryScope scope(MemoryUse::input);
  return {name, std::move(model), randn({batch, o.channels, o.image, o.image}),
          randint(0, o.classes, {batch}),
          gflop_of_step(double(batch), {stem, layers + width * double(o.classes)})};
}
}  // namespace

std::vector<std::string> synthetic_names() {
  return {"mlp_tiny", "mlp",      "lenet",     "resnet18_cifar", "resnet18_224", "vit_tiny",
          "gpt_tiny", "gpt_char", "gpt2_124m", "llama_tiny",     "llama_124m"};
}

std::string synthetic_list() {
  std::string list;
  for (const std::string& name : synthetic_names()) list += (list.empty() ? "" : ", ") + name;
  return list;
}

Tensor logits_loss(const Tensor& logits, const Tensor& targets) {
  return cross_entropy(flatten(logits, 0, -2), flatten(targets));
}

namespace {
/// `large`: batches that keep a GPU busy.
SyntheticWorkload on_cpu(const std::string& name, bool large) {
  if (name == "mlp_tiny") return mlp(name, {784, 128, 10}, 64);
  if (name == "mlp")
    return large ? mlp(name, {784, 8192, 8192, 10}, 8192) : mlp(name, {784, 2048, 2048, 10}, 512);
  if (name == "lenet") return lenet();
  if (name == "resnet18_cifar")
    return resnet18(name, {.classes = 10, .cifar_stem = true}, large ? 512 : 64, 32);
  if (name == "resnet18_224")
    return resnet18(name, {.classes = large ? 1000 : 37}, large ? 256 : 16, 224);
  if (name == "gpt_tiny")
    return gpt(name, {.vocabulary = 65, .context = 64, .layers = 4, .heads = 4, .width = 128}, 16,
               64);
  if (name == "gpt_char")
    return gpt(name, {.vocabulary = 65, .context = 256, .layers = 6, .heads = 6, .width = 384},
               large ? 64 : 8, 256);
  if (name == "gpt2_124m")
    return gpt(name,
               {.vocabulary = 50304, .context = 1024, .layers = 12, .heads = 12, .width = 768},
               large ? 16 : 1, large ? 1024 : 512);
  if (name == "llama_tiny") return llama(name, tiny_llama, 16, 64);
  if (name == "llama_124m")
    return llama(name,
                 {.vocabulary = 32000,
                  .context = 1024,
                  .layers = 12,
                  .width = 768,
                  .heads = 12,
                  .key_heads = 4,
                  .hidden = 2048},
                 large ? 16 : 1, large ? 1024 : 512);
  if (name == "vit_tiny") return vit(name, tiny_vit, large ? 1024 : 128);
  if (auto untuned = make_untuned(name)) return std::move(*untuned);
  fail<UsageError>("workload", "there is no workload named \"", name, "\". Use one of ",
                   synthetic_list(), ".");
}
}  // namespace

SyntheticWorkload make_synthetic(const std::string& name, Device device, uint64_t seed) {
  manual_seed(seed);
  SyntheticWorkload w = on_cpu(name, device.kind != DeviceKind::cpu);
  w.model->to(device);
  const MemoryScope scope(MemoryUse::input);
  w.inputs = w.inputs.to(device), w.targets = w.targets.to(device);
  return w;
}

// The models and data of small real workloads.

using data::DataLoader;

LicenseText license_text() {
  std::string text;
  for (const char* name : {"Apache-2.0", "Artistic", "GFDL-1.3", "LGPL-2.1", "MPL-2.0", "GPL-3"})
    text += data::read_text(std::string("/usr/share/common-licenses/") + name) + "\n\n";
  const data::CharacterTokenizer tokenizer(text);
  const Tensor tokens = data::tokenize(tokenizer, text);
  // Other versions of these files may have more characters; those count as the last.
  data::TextSplit split =
      data::split_text(minimum(tokens, full({}, double(characters - 1), i64)), 0.1);
  return {split.train, split.validation};
}

namespace {

/// The first `count` images, normalized, [count, 1, 28, 28], and their labels.
data::Batch first_images(data::Split split, int64_t count) {
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < count; ++i) indices.push_back(i);
  return data::fashion_mnist({.split = split}).batch(indices);
}

std::function<DataLoader()> loader(const std::function<data::Batch()>& make, int64_t batch,
                                   bool trains, uint64_t seed) {
  return [make, batch, trains, seed] {
    const data::Batch all = make();
    return DataLoader(data::TensorDataset(all.inputs, all.targets),
                      {.batch_size = batch, .shuffle = trains, .drop_last = trains, .seed = seed});
  };
}

struct ResNet8 final : nn::Layer {
  nn::Conv2d conv1{1, 16, 3, {.padding = 1, .bias = false}};
  nn::BatchNorm2d bn1{16};
  nn::models::BasicBlock block1{16, 16, 1, false}, block2{16, 32, 2, false},
      block3{32, 64, 2, false};
  nn::Linear fc{64, 10};
  Tensor forward(const Tensor& x) const override {
    const Tensor y = block3(block2(block1(relu(bn1(conv1(x))))));
    return fc(mean(flatten(y, 2, -1), 2));
  }
  void describe(nn::Fields& field) override {
    field("conv1", conv1), field("bn1", bn1);
    field("block1", block1), field("block2", block2), field("block3", block3);
    field("fc", fc);
  }
};

Workload resnet8(uint64_t seed) {
  auto model = std::make_unique<ResNet8>();
  return {
      .task = train::classification(*model),
      .model = std::move(model),
      .train = loader([] { return first_images(data::Split::train, 8192); }, 64, true, seed),
      .validation = loader([] { return first_images(data::Split::test, 2000); }, 250, false, seed),
      .example = data::Batch{randn({64, 1, 28, 28}), randint(0, 10, {64})},
      .lr = 3e-3,
      .schedule = warm_up_and_cosine};
}

/// Predicts each next character.
struct TextLstm final : nn::Layer {
  nn::Embedding embedding{characters, 64};
  nn::Lstm lstm{64, 128, {.batch_first = true}};
  nn::Linear head{128, characters};
  /// tokens: i64 [n, time]; the result: logits [n, time, characters].
  Tensor forward(const Tensor& tokens) const override { return head(lstm(embedding(tokens)).y); }
  void describe(nn::Fields& field) override {
    field("embedding", embedding), field("lstm", lstm), field("head", head);
  }
};

Workload lstm_text(uint64_t seed) {
  Workload made = text_workload(std::make_unique<TextLstm>(), seed, 32);
  made.lr = 1e-2, made.schedule = warm_up_and_cosine, made.clip_norm = 1;
  return made;
}

/// Images x0 mixed with noise e at levels t uniform on [0, 1]: inputs are cos(t pi/2) x0 + sin(t
/// pi/2) e and t itself as a second channel, [count, 2, 28, 28]; targets are e.
data::Batch noisy_images(data::Split split, int64_t count, uint64_t noise) {
  const Tensor x = first_images(split, count).inputs;
  const RandomKey before = default_generator().state();
  manual_seed(noise);  // of the data, the same for every run
  const Tensor e = randn(x.shape()), t = rand({count, 1, 1, 1});
  default_generator().set_state(before);
  const Tensor angle = t * (std::acos(-1.0) / 2);
  const Tensor mixed = cos(angle) * x + sin(angle) * e;
  return {cat({mixed, t + zeros(x.shape())}, 1), e};
}

Workload diffusion(uint64_t seed) {
  auto model = std::make_unique<nn::models::UNet>(
      nn::models::UNetOptions{.channels = 2, .classes = 1, .width = 8, .depth = 2});
  return {.task = train::regression(*model),
          .model = std::move(model),
          .train = loader([] { return noisy_images(data::Split::train, 4096, 1); }, 32, true, seed),
          .validation =
              loader([] { return noisy_images(data::Split::test, 1000, 2); }, 250, false, seed),
          .example = data::Batch{randn({32, 2, 28, 28}), randn({32, 1, 28, 28})},
          .lr = 3e-3,
          .schedule = warm_up_and_cosine};
}

}  // namespace

std::vector<NamedWorkload> small_real_workloads() {
  return {{"resnet8", "three residual blocks on 8,192 images of Fashion-MNIST", resnet8, ""},
          {"lstm_text", "an LSTM of width 128 on the characters of Debian's license texts",
           lstm_text, ""},
          {"diffusion", "a U-Net that predicts the noise in 4,096 images of Fashion-MNIST",
           diffusion, "unet"}};
}

// The models with untuned shapes, and the table of their names.

namespace {

SyntheticWorkload mlp(int64_t batch) {
  auto model = std::make_unique<nn::Sequential>(nn::models::mlp({784, 1000, 333, 10}));
  const MemoryScope scope(MemoryUse::input);
  return {.model = std::move(model),
          .inputs = randn({batch, 784}),
          .targets = randint(0, 10, {batch}),
          .gflop = gflop_of_step(double(batch), {784 * 1000, 1000 * 333, 333 * 10})};
}

/// Ten images of 45 x 37 in ten classes; per_image: the multiply-adds of each convolution.
SyntheticWorkload of_images(std::unique_ptr<nn::Layer> model,
                            const std::vector<double>& per_image) {
  const MemoryScope scope(MemoryUse::input);
  return {.model = std::move(model),
          .inputs = randn({10, 3, 45, 37}),
          .targets = randint(0, 10, {10}),
          .gflop = gflop_of_step(10, per_image)};
}

/// Three convolutions with batch norm, of 48 and 96 channels, and one of 1 x 1 to 333.
struct OddConvNet final : nn::Layer {
  nn::Conv2d conv1{3, 48, 3, {.padding = 1, .bias = false}};
  nn::BatchNorm2d bn1{48};
  nn::Conv2d conv2{48, 96, 3, {.stride = 2, .padding = 1, .bias = false}};
  nn::BatchNorm2d bn2{96};
  nn::Conv2d conv3{96, 96, 5, {.padding = 2, .bias = false}};
  nn::BatchNorm2d bn3{96};
  nn::Conv2d conv4{96, 333, 1};
  nn::Linear fc{333, 10};
  Tensor forward(const Tensor& x) const override {
    Tensor y = nn::conv_norm_relu(conv1, bn1, x);
    y = nn::conv_norm_relu(conv2, bn2, y);
    y = max_pool2d(y, {.kernel = 3, .stride = 2, .padding = 1});
    y = relu(conv4(nn::conv_norm_relu(conv3, bn3, y)));
    return fc(flatten(adaptive_avg_pool2d(y, 1), 1));
  }
  void describe(nn::Fields& field) override {
    field("conv1", conv1), field("bn1", bn1), field("conv2", conv2), field("bn2", bn2);
    field("conv3", conv3), field("bn3", bn3), field("conv4", conv4), field("fc", fc);
  }
};

/// A block like ConvNeXt's (Liu et al. 2022), with batch norm: a depthwise window of 7 x 7, two
/// convolutions of 1 x 1 with GELU between them, and a residual connection.
struct DepthwiseBlock final : nn::Layer {
  nn::Conv2d depthwise;
  nn::BatchNorm2d bn;
  nn::Conv2d up, down;
  explicit DepthwiseBlock(int64_t width)
      : depthwise(width, width, 7, {.padding = 3, .groups = width}),
        bn(width),
        up(width, 4 * width, 1),
        down(4 * width, width, 1) {}
  Tensor forward(const Tensor& x) const override { return x + down(gelu(up(bn(depthwise(x))))); }
  void describe(nn::Fields& field) override {
    field("depthwise", depthwise), field("bn", bn), field("up", up), field("down", down);
  }
};

struct DepthwiseNet final : nn::Layer {
  nn::Conv2d stem{3, 48, 3, {.padding = 1}};
  DepthwiseBlock block1{48};
  nn::Conv2d shrink{48, 96, 2, {.stride = 2}};
  DepthwiseBlock block2{96};
  nn::Linear fc{96, 10};
  Tensor forward(const Tensor& x) const override {
    return fc(flatten(adaptive_avg_pool2d(block2(shrink(block1(stem(x)))), 1), 1));
  }
  void describe(nn::Fields& field) override {
    field("stem", stem), field("block1", block1), field("shrink", shrink);
    field("block2", block2), field("fc", fc);
  }
};

SyntheticWorkload conv_48() {
  constexpr double in = 45 * 37, halved = 23 * 19, pooled = 12 * 10;
  return of_images(std::make_unique<OddConvNet>(),
                   {in * 48 * 27, halved * 96 * 48 * 9, pooled * 96 * 96 * 25, pooled * 333 * 96});
}

SyntheticWorkload depthwise_7x7() {
  constexpr double in = 45 * 37, halved = 22 * 18;
  return of_images(std::make_unique<DepthwiseNet>(),
                   {in * 48 * 27, in * 48 * 49, 2 * in * 48 * 192, halved * 96 * 48 * 4,
                    halved * 96 * 49, 2 * halved * 96 * 384});
}

/// A GPT with five heads of 48; causal attention masks half of its two products.
SyntheticWorkload gpt_48() {
  constexpr double length = 100, width = 240;
  auto model = std::make_unique<nn::models::Gpt>(nn::models::GptOptions{
      .vocabulary = 333, .context = 100, .layers = 2, .heads = 5, .width = 240});
  const MemoryScope scope(MemoryUse::input);
  return {.model = std::move(model),
          .inputs = randint(0, 333, {3, 100}),
          .targets = randint(0, 333, {3, 100}),
          .gflop = gflop_of_step(3 * length, {0, 2 * width * (12 * width + length), 333 * width})};
}

SyntheticWorkload lstm_100() {
  auto model = std::make_unique<nn::models::LstmClassifier>(
      333,
      nn::models::LstmClassifierOptions{.classes = 10, .width = 48, .hidden = 100, .layers = 2});
  const MemoryScope scope(MemoryUse::input);
  return {.model = std::move(model),
          .inputs = randint(0, 333, {10, 25}),
          .targets = randint(0, 10, {10}),
          .gflop = gflop_of_step(10 * 25, {0, 4 * 100 * (48 + 100), 4 * 100 * (100 + 100)})};
}

struct NamedUntuned {
  std::string_view name;
  SyntheticWorkload (*make)();
};
constexpr NamedUntuned all[] = {{"mlp_100", [] { return mlp(100); }},
                                {"mlp_1", [] { return mlp(1); }},
                                {"conv_48", conv_48},
                                {"depthwise_7x7", depthwise_7x7},
                                {"gpt_48", gpt_48},
                                {"lstm_100", lstm_100}};

}  // namespace

std::vector<std::string> untuned_names() {
  std::vector<std::string> names;
  for (const NamedUntuned& each : all) names.emplace_back(each.name);
  return names;
}

std::optional<SyntheticWorkload> make_untuned(const std::string& name) {
  for (const NamedUntuned& each : all)
    if (each.name == name) {
      SyntheticWorkload made = each.make();
      made.name = name;
      return made;
    }
  return std::nullopt;
}

}  // namespace halftone::lab
