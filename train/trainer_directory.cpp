// A Trainer and its directory: what is found there is gone on from, refused or set aside, and the
// log files are opened.
#include <halftone/train/trainer.h>

#include <algorithm>
#include <array>
#include <charconv>

#include <halftone/core/error.h>
#include <halftone/train/durable_files.h>
#include <halftone/train/environment.h>
#include <halftone/train/loggers.h>
#include <halftone/train/resume.h>

namespace halftone::train {

namespace fs = std::filesystem;

namespace {
constexpr std::string_view where = "Trainer";

/// The fewest digits that say all of it: 16, 0.1.
std::string digits(double number) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, number).ptr};
}

/// Whether there is anything but hidden names.
bool holds_anything(const fs::path& directory) {
  std::error_code error;
  for (fs::directory_iterator at(directory, error); !error && at != fs::directory_iterator();
       at.increment(error))
    if (!at->path().filename().string().starts_with('.')) return true;
  if (error)
    fail<FormatError>(where, "cannot list ", directory.string(), ": ", error.message(),
                      ". Check its permissions.");
  return false;
}
/// What a training writes besides checkpoints, by the names that it gives.
constexpr std::array own_entries{"checkpoints", "metrics.csv", "metrics.csv.txt", "metrics.jsonl",
                                 "tensorboard"};

/// old-1, old-2, ...: the first that is not there.
fs::path free_old_name(const fs::path& directory) {
  std::error_code ignored;
  for (int i = 1;; ++i)
    if (fs::path path = directory / ("old-" + std::to_string(i));
        !fs::exists(fs::symlink_status(path, ignored)))
      return path;
}

/// Moves them to old-N, and returns that directory.
fs::path set_aside(const fs::path& directory) {
  const fs::path old = free_old_name(directory);
  files::make_directories(where, old);
  for (const char* name : own_entries) {
    std::error_code error;
    fs::rename(directory / name, old / name, error);
    if (error && error != std::errc::no_such_file_or_directory)
      fail<FormatError>(where, "cannot move ", (directory / name).string(), " to ", old.string(),
                        ": ", error.message(), ". Check the permissions of both.");
  }
  sync_directory(old), sync_directory(directory);
  return old;
}

std::string shown(const std::vector<double>& values) {
  std::string text;
  for (const double value : values) text += (text.empty() ? "" : ", ") + digits(value);
  return text;
}
}  // namespace

void Trainer::begin_in_directory() {
  files::make_directories(where, checkpoints());
  std::optional<FoundCheckpoint> found;
  if (options_.resume) found = latest_checkpoint(checkpoints());
  if (!found) refuse_or_set_aside();
  remove_abandoned(checkpoints());
  if (found) {
    if (found->state.batches > 0) require_same_loader(found->state.numbers, *loader_);
    require_same_environment(found->state);
  }
  loggers_ = opened_loggers();
  if (found) resume(found->path);
  keeper_.emplace(checkpoints());
  remove_old_checkpoints();  // a kill may have come between saving and removing
}

/// Where there is nothing to go on from, there must be nothing that another training would be
/// written over or behind.
void Trainer::refuse_or_set_aside() {
  const fs::path root = checkpoints();
  const std::vector<DamagedCheckpoint> damaged =
      options_.resume ? damaged_checkpoints(root) : std::vector<DamagedCheckpoint>{};
  if (options_.resume ? damaged.empty() : !holds_anything(root)) return;
  if (options_.set_aside) {
    const fs::path old = set_aside(options_.directory);
    files::make_directories(where, root);
    return tell("what was in " + options_.directory.string() + " is now in " + old.string());
  }
  if (!options_.resume)
    fail<UsageError>(where, root.string(), " holds the checkpoints of an earlier training. ",
                     "Pass .resume = true to go on with it, .set_aside = true to move it to ",
                     free_old_name(options_.directory).string(), ", or name another directory.");
  std::string reasons;
  constexpr std::size_t most_shown = 3;
  for (std::size_t i = 0; i < std::min(damaged.size(), most_shown); ++i)
    reasons += (i ? "; " : "") + damaged[i].path.filename().string() + ": " + damaged[i].reason;
  if (damaged.size() > most_shown)
    reasons += "; and " + std::to_string(damaged.size() - most_shown) + " more";
  fail<FormatError>(where, "there is no valid checkpoint in ", root.string(), ": ", reasons,
                    ". Put a good copy there, or start over: pass .set_aside = true, which moves "
                    "what is there to ",
                    free_old_name(options_.directory).string(), ", or name another directory.");
}

std::vector<std::shared_ptr<Logger>> Trainer::opened_loggers() const {
  std::vector<std::shared_ptr<Logger>> all = options_.loggers;
  const fs::path& directory = options_.directory;
  if (options_.csv) all.push_back(std::make_shared<CsvLogger>(directory / "metrics.csv"));
  if (options_.json_lines)
    all.push_back(std::make_shared<JsonLinesLogger>(directory / "metrics.jsonl"));
  if (options_.tensorboard)
    all.push_back(std::make_shared<TensorBoardLogger>(directory / "tensorboard"));
  return all;
}

/// "lr", "betas", ... of all groups; the rates are those that a schedule multiplies.
Trainer::OptionValues Trainer::option_values() {
  constexpr std::string_view beginning = "param_groups.";
  OptionValues values;
  const bool several = training_.optimizer().group_count() > 1;
  for (const auto& [name, x] : training_.optimizer().state_dict()) {
    if (!name.starts_with(beginning) || name.ends_with(".params")) continue;
    const std::size_t dot = name.find('.', beginning.size());
    const std::string group = name.substr(beginning.size(), dot - beginning.size());
    values[name.substr(dot + 1) + (several ? " of group " + group : "")] = x.to_vector<double>();
  }
  if (scheduler_) {
    const std::vector<double> rates = scheduler_->state_dict().at("base_lrs").to_vector<double>();
    for (std::size_t group = 0; group < rates.size(); ++group)
      values[several ? "lr of group " + std::to_string(group) : "lr"] = {rates[group]};
  }
  return values;
}

void Trainer::resume(const fs::path& checkpoint) {
  const OptionValues given = option_values();
  optim::NamedTensors tensors;
  const CheckpointState at = load_training(
      checkpoint, training_, scheduler_ ? &*scheduler_ : nullptr, amp::Convert::refuse, &tensors);
  restore_tensors(tensors);
  restore(at);
  saved_ = place(), saved_path_ = checkpoint;
  note("resumed after step " + std::to_string(at.step) + " from " + checkpoint.string());
  tell_changes(given, at);
}

/// Options of the optimizer that a checkpoint brings back count more than those in the program:
/// whoever changed them there has to know.
void Trainer::tell_changes(const OptionValues& given, const CheckpointState& at) {
  for (const auto& [name, now] : option_values()) {
    const auto before = given.find(name);
    if (before != given.end() && before->second != now)
      tell(name + " is " + shown(now) + " in the checkpoint, which counts, and " +
           shown(before->second) + " in the program: to change it, do so in on_fit_start()");
  }
  if (at.batches > 0) return;  // then they are the same
  for (const auto& [name, now] : loader_numbers(*loader_)) {
    const auto before = at.numbers.find(name);
    if (before != at.numbers.end() && before->second != now)
      tell("the loader's " + name.substr(name.rfind('.') + 1) + " is " + digits(now) +
           " from now on; it was " + digits(before->second));
  }
}

/// A place in an epoch means something only where the batches are the same.
void Trainer::require_same_loader(const std::map<std::string, double>& before,
                                  const data::DataLoader& now) {
  for (const auto& [name, here] : loader_numbers(now)) {
    const auto there = before.find(name);
    if (there == before.end() || there->second != here)
      fail<UsageError>(where, "the training stands in the middle of an epoch whose ",
                       name.substr(name.rfind('.') + 1), " is ",
                       there == before.end() ? "unknown" : digits(there->second),
                       "; that of this loader is ", digits(here),
                       ". Go on with the loader that it had.");
  }
}

void Trainer::require_same_environment(const CheckpointState& state) const {
  const auto text = state.texts.find("environment");
  const std::string there = text == state.texts.end() ? "unknown" : text->second,
                    here = environment_of(device());
  if (options_.deterministic && there != here)
    fail<UsageError>(where,
                     "this is another environment, whose bits may differ: the checkpoint is "
                     "of \"",
                     there, "\", here is \"", here, "\". Resume there, or turn deterministic off.");
}

}  // namespace halftone::train
