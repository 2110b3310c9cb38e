// The built-in workloads. They read their data only when it is used, so that a policy's effect on a
// model can be shown without data.
#include <halftone/lab/workload.h>

#include <algorithm>
#include <cmath>

#include <halftone/autograd/ops.h>
#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/core/random.h>
#include <halftone/data/data_loader.h>
#include <halftone/data/sets.h>
#include <halftone/data/text.h>
#include <halftone/lab/workload_data.h>
#include <halftone/nn/models/gpt.h>
#include <halftone/nn/models/models.h>
#include <halftone/nn/module.h>
#include <halftone/nn/nn.h>
#include <halftone/optim/lr_schedule.h>
#include <halftone/optim/optimizer.h>
#include <halftone/optim/optimizers.h>
#include <halftone/policy/policy_file.h>
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

Workload gpt_of(uint64_t seed, int64_t layers, int64_t width) {
  auto model = std::make_unique<nn::models::Gpt>(nn::models::GptOptions{
      .vocabulary = characters, .context = context, .layers = layers, .heads = 4, .width = width});
  const auto rates = [](int64_t steps) {
    const int64_t warm_up = steps / 20 + 1;
    return optim::LrSchedule::warm_up(
        warm_up, optim::LrSchedule::cosine(std::max<int64_t>(steps - warm_up, 1), 0.05));
  };
  return {
      .task = train::language_modeling(*model),
      .model = std::move(model),
      .train =
          [seed] {
            return DataLoader(
                data::TextDataset(license_text().train, {.context = context, .stride = 7}),
                {.batch_size = 16, .shuffle = true, .drop_last = true, .seed = seed});
          },
      .validation =
          [seed] {
            return DataLoader(data::TextDataset(license_text().validation, {.context = context}),
                              {.batch_size = 32, .seed = seed});
          },
      .example =
          data::Batch{randint(0, characters, {16, context}), randint(0, characters, {16, context})},
      .lr = 3e-3,
      .optimizer =
          [](std::vector<Tensor> parameters, double lr) {
            return std::make_unique<optim::AdamW>(
                std::move(parameters),
                optim::AdamWOptions{.lr = lr, .betas = {0.9, 0.99}, .weight_decay = 0.1});
          },
      .schedule = rates,
      .clip_norm = 1};
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
       [](uint64_t seed) { return gpt_of(seed, 3, 96); }, "gpt"}};
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

amp::Training training_of(const amp::Strategy& strategy, const Workload& workload,
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

constexpr NamedOptimizer optimizers[] = {{"adamw", made<optim::AdamW, optim::AdamWOptions>},
                                         {"adam", made<optim::Adam, optim::AdamOptions>},
                                         {"sgd", with_momentum},
                                         {"rmsprop", made<optim::Rmsprop, optim::RmspropOptions>},
                                         {"lion", made<optim::Lion, optim::LionOptions>},
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

}  // namespace halftone::lab
