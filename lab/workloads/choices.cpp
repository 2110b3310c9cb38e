// The names of choices, and the objects that they create.
#include <halftone/lab/workloads/choices.h>

#include <algorithm>
#include <cmath>

#include <halftone/core/error.h>
#include <halftone/core/random.h>
#include <halftone/nn/state_dict.h>
#include <halftone/optim/optim.h>
#include <halftone/train/checkpoints.h>
#include <halftone/train/metrics.h>

namespace halftone::lab {

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
