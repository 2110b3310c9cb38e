// Listing first reads only the small files (state.json, sizes). All bytes are verified before
// anything depends on a checkpoint: before it is the latest, or is kept instead of another.
#include <halftone/train/checkpoints.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <functional>
#include <set>
#include <tuple>

#include <sys/stat.h>

#include <halftone/core/error.h>
#include <halftone/core/files.h>
#include <halftone/train/checkpoint.h>
#include <halftone/train/loggers.h>

namespace halftone::train {

namespace fs = std::filesystem;

namespace {
[[noreturn]] void cannot_list(const fs::path& path, const std::error_code& error) {
  fail<FormatError>("checkpoint", "cannot list ", path.string(), ": ", error.message(),
                    ". Check the path and its permissions.");
}

/// Returns the entries of a directory; none if it does not exist.
std::vector<fs::path> entries_of(const fs::path& directory) {
  files::require_path("checkpoint", directory);
  std::error_code error;
  std::vector<fs::path> entries;
  fs::directory_iterator at(directory, error);
  if (error == std::errc::no_such_file_or_directory) return entries;
  for (; !error && at != fs::directory_iterator(); at.increment(error))
    entries.push_back(at->path());
  if (error) cannot_list(directory, error);
  return entries;
}

bool is_best_link(const fs::path& path) {
  std::error_code ignored;
  return path.filename() == best_link && fs::is_symlink(fs::symlink_status(path, ignored));
}

bool verified(const fs::path& path) {
  try {
    verify_checkpoint(path);
    return true;
  } catch (const FormatError&) { return false; }
}

/// Returns the state if manifest, state and sizes agree; nullopt for a damaged checkpoint or
/// another directory.
std::optional<CheckpointState> likely_state(const fs::path& path) {
  try {
    return read_checkpoint_state(path);
  } catch (const FormatError&) { return std::nullopt; }
}

/// Returns the checkpoints with a likely state, by step.
std::vector<FoundCheckpoint> likely_checkpoints(const fs::path& root) {
  std::vector<FoundCheckpoint> found;
  for (const fs::path& path : entries_of(root)) {
    if (path.filename().string().starts_with('.') || is_best_link(path)) continue;
    if (auto state = likely_state(path)) found.push_back({path, std::move(*state)});
  }
  std::ranges::sort(found, {}, [](const FoundCheckpoint& one) {
    return std::tuple(one.state.step, !one.state.numbers.contains(unfinished_step),
                      one.path.filename().string());
  });
  return found;
}

void remove_directory(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error)
    fail<FormatError>("checkpoint", "cannot remove ", path.string(), ": ", error.message(),
                      ". Check its permissions, and remove it by hand.");
}
}  // namespace

std::vector<FoundCheckpoint> valid_checkpoints(const fs::path& root) {
  std::vector<FoundCheckpoint> found = likely_checkpoints(root);
  std::erase_if(found, [](const FoundCheckpoint& one) { return !verified(one.path); });
  return found;
}

std::optional<FoundCheckpoint> latest_checkpoint(const fs::path& root) {
  std::vector<FoundCheckpoint> found = likely_checkpoints(root);
  while (!found.empty() && !verified(found.back().path)) found.pop_back();
  if (found.empty()) return std::nullopt;
  return std::move(found.back());
}

void remove_checkpoint(const fs::path& given) {
  fs::path path = given.has_filename() ? given : given.parent_path();
  const std::string name = path.filename().string();
  std::error_code ignored;
  if (name.empty() || name[0] == '.' ||
      fs::symlink_status(path, ignored).type() != fs::file_type::directory)
    fail<UsageError>("checkpoint", "no directory of a checkpoint: \"", given.string(),
                     "\". Nothing was removed.");
  if (!path.has_parent_path()) path = fs::path(".") / path;
  bool any = false;
  for (const fs::path& entry : entries_of(path)) {
    const std::string file = entry.filename().string();
    if (file != manifest_file && std::ranges::find(listed_files, file) == listed_files.end())
      fail<UsageError>("checkpoint", path.string(), " holds ", in_quotes(file),
                       ", which is not a file of a checkpoint. Nothing was removed.");
    any = true;
  }
  if (!any)
    fail<UsageError>("checkpoint", path.string(), " is empty: no checkpoint. Nothing was removed.");
  const fs::path aside = temporary_name(path, "removed-");
  if (!rename_to_new(path, aside))
    fail<FormatError>("checkpoint", "the path exists: ", aside.string(),
                      ". Call remove_abandoned() first.");
  try {
    sync_directory(path.parent_path());
  } catch (...) {
    std::error_code second;
    fs::remove_all(aside, second);
    throw;
  }
  remove_directory(aside);
}

std::optional<int64_t> step_of_name(std::string_view name) {
  constexpr std::string_view beginning = "step-";
  if (!name.starts_with(beginning)) return std::nullopt;
  // A name that the number prints to again is this library's; any other name is not.
  const auto number_in = [](std::string_view text) {
    int64_t number = 0;
    std::from_chars(text.data(), text.data() + text.size(), number);
    return number;
  };
  const std::string_view rest = name.substr(beginning.size());
  const std::size_t dash = rest.find('-');
  const int64_t step = number_in(rest.substr(0, dash));
  std::string again = checkpoint_name(step);
  if (dash != std::string_view::npos) {
    const int64_t copy = number_in(rest.substr(dash + 1));
    if (copy < 2) return std::nullopt;
    again += '-' + std::to_string(copy);
  }
  if (step < 0 || again != name) return std::nullopt;
  return step;
}

fs::path free_name(const fs::path& root, int64_t step) {
  const std::string name = checkpoint_name(step);
  std::error_code ignored;
  fs::path path = root / name;
  for (int i = 2; fs::exists(fs::symlink_status(path, ignored)); ++i)
    path = root / (name + "-" + std::to_string(i));
  return path;
}

namespace {
/// Returns whether a directory has files of a checkpoint, or is empty and has a checkpoint's name.
bool looks_like_checkpoint(const fs::path& path) {
  std::error_code error;
  const fs::file_type type = fs::status(path, error).type();
  if (type != fs::file_type::not_found && error) cannot_list(path, error);
  if (path.filename().string().starts_with('.') || type != fs::file_type::directory ||
      is_best_link(path))
    return false;
  bool empty = true;
  for (const fs::path& entry : entries_of(path)) {
    const std::string file = entry.filename().string();
    if (file == manifest_file || std::ranges::find(listed_files, file) != listed_files.end())
      return true;
    empty = false;
  }
  return empty && step_of_name(path.filename().string());
}
}  // namespace

std::vector<DamagedCheckpoint> damaged_checkpoints(const fs::path& root) {
  std::vector<DamagedCheckpoint> damaged;
  std::vector<fs::path> entries = entries_of(root);
  std::ranges::sort(entries, std::greater());
  for (const fs::path& path : entries) try {
      if (looks_like_checkpoint(path)) verify_checkpoint(path);
    } catch (const FormatError& error) { damaged.push_back({path, std::string(error.problem())}); }
  return damaged;
}

// --- retention

Keeper::Known& Keeper::look_at(const Name& name) {
  const std::string directory = root_.native() + '/' + name + '/';  // fs::path would be slow here
  Stamp stamp{};
  std::size_t at = 0;
  for (const std::string_view file : {model_file, optimizer_file, state_file, manifest_file}) {
    struct stat status {};
    if (lstat((directory + std::string(file)).c_str(), &status) == 0) {
      stamp[at] = status.st_ino, stamp[at + 1] = uint64_t(status.st_size);
      stamp[at + 2] =
          uint64_t(status.st_mtim.tv_sec) * 1'000'000'000 + uint64_t(status.st_mtim.tv_nsec);
    }
    at += 3;
  }
  Known& known = known_[name];
  if (known.stamp != stamp) known = {.stamp = stamp};
  return known;
}

bool Keeper::verified(const Name& name) {
  Known& known = look_at(name);
  if (!known.valid) known.valid = halftone::train::verified(root_ / name);
  return *known.valid;
}

const std::optional<CheckpointState>& Keeper::state_of(const Name& name) {
  Known& known = look_at(name);
  if (!std::exchange(known.state_read, true)) known.state = likely_state(root_ / name);
  return known.state;
}

/// Returns the names whose state can be read, the newest step first, finished before unfinished.
/// The step in the state counts: a copy under a higher number is as old as its original.
std::vector<Keeper::Name> Keeper::by_step(std::vector<Name> names) {
  std::vector<std::tuple<int64_t, bool, Name>> found;
  for (Name& name : names)
    if (const auto& state = state_of(name))
      found.emplace_back(state->step, !state->numbers.contains(unfinished_step), std::move(name));
  std::ranges::sort(found, std::greater());
  names.clear();
  for (auto& [step, finished, name] : found) names.push_back(std::move(name));
  return names;
}

/// Returns the names of the best checkpoints by the metric; of equal ones the newer.
std::vector<Keeper::Name> Keeper::best_of(const std::vector<Name>& names,
                                          const Retention& retention) {
  std::vector<std::pair<double, Name>> ranked;
  for (const Name& name : names) {
    const auto& state = state_of(name);
    if (!state || state->numbers.contains(unplanned_checkpoint)) continue;
    const auto metric = state->numbers.find(retention.metric);
    if (metric != state->numbers.end() && !std::isnan(metric->second))
      ranked.emplace_back(retention.larger_is_better ? -metric->second : metric->second, name);
  }
  std::ranges::stable_sort(ranked, {}, &std::pair<double, Name>::first);
  std::vector<Name> best;
  for (const auto& [value, name] : ranked) {
    if (int64_t(best.size()) == retention.best) break;
    if (verified(name)) best.push_back(name);
  }
  return best;
}

/// Returns all names of step_of_name(), and forgets what is known of others.
std::vector<Keeper::Name> Keeper::names() {
  std::vector<Name> names;
  for (const fs::path& path : entries_of(root_))
    if (Name name = path.filename().string(); step_of_name(name)) names.push_back(std::move(name));
  std::erase_if(known_, [present = std::set(names.begin(), names.end())](const auto& one) {
    return !present.contains(one.first);
  });
  return names;
}

std::optional<fs::path> Keeper::best(const Retention& retention) {
  if (retention.best < 1) return std::nullopt;
  Retention first = retention;
  first.best = 1;
  const std::vector<Name> best = best_of(by_step(names()), first);
  return best.empty() ? std::nullopt : std::optional(root_ / best.front());
}

std::vector<fs::path> Keeper::keep(const Retention& retention) {
  if (retention.last < 1 || retention.best < 0)
    fail<UsageError>("checkpoint", "the last ", retention.last, " and the best ", retention.best,
                     " cannot be kept. Keep the last 1 or more, the best 0 or more.");
  if (retention.best > 0 && retention.metric.empty())
    fail<UsageError>("checkpoint", "the best ", retention.best,
                     " by no metric. Name one of CheckpointState::numbers.");
  std::vector<Name> names = this->names();
  if (int64_t(names.size()) <= 1) return {};
  names = by_step(std::move(names));

  std::set<Name> stay;
  for (Name& name : best_of(names, retention)) stay.insert(std::move(name));
  // Those of the last valid ones; damaged ones in between stay as well.
  std::vector<Name> old;
  int64_t last = 0;
  bool newer = false;
  for (const Name& name : names) {
    const auto& state = state_of(name);
    const bool planned = state && !state->numbers.contains(unplanned_checkpoint);
    if (last >= retention.last || (newer && !planned)) old.push_back(name);
    else if (verified(name)) newer = true, last += planned;
  }
  std::vector<fs::path> removed;
  for (auto name = old.rbegin(); name != old.rend(); ++name) {
    if (stay.contains(*name) || !likely_state(root_ / *name)) continue;
    try {
      remove_checkpoint(root_ / *name);
    } catch (const UsageError&) { continue; }  // it has files of the user
    removed.push_back(root_ / *name);
  }
  return removed;
}

std::vector<fs::path> keep(const fs::path& root, const Retention& retention) {
  return Keeper(root).keep(retention);
}

std::vector<fs::path> remove_abandoned(const fs::path& root) {
  std::vector<fs::path> removed;
  for (const fs::path& path : entries_of(root)) {
    if (!is_temporary(path)) continue;
    const Descriptor lock = try_lock(path);
    if (!lock) continue;
    remove_directory(path);
    removed.push_back(path);
  }
  return removed;
}

// Resumes from, refuses or sets aside what is in a training's directory, and removes older or worse
// checkpoints when the training saves.

namespace fs = std::filesystem;

namespace {

/// Returns whether a directory has entries that are not hidden; false if it does not exist.
bool holds_anything(const fs::path& directory) {
  std::error_code error;
  if (!fs::exists(directory, error) && !error) return false;
  for (fs::directory_iterator at(directory, error); !error && at != fs::directory_iterator();
       at.increment(error))
    if (!at->path().filename().string().starts_with('.')) return true;
  if (error)
    fail<FormatError>("Trainer", "cannot list ", directory.string(), ": ", error.message(),
                      ". Check its permissions.");
  return false;
}

/// The names of everything that a training writes besides checkpoints.
constexpr auto csv_name = "metrics.csv", json_lines_name = "metrics.jsonl",
               tensorboard_name = "tensorboard", checkpoints_name = "checkpoints";
constexpr std::array own_entries{checkpoints_name, csv_name, "metrics.csv.txt", json_lines_name,
                                 tensorboard_name};

/// Returns the first of old-1, old-2, ... that does not exist.
fs::path free_old_name(const fs::path& directory) {
  std::error_code ignored;
  for (int i = 1;; ++i)
    if (fs::path path = directory / ("old-" + std::to_string(i));
        !fs::exists(fs::symlink_status(path, ignored)))
      return path;
}

/// Moves the training's files to old-N, and returns that directory.
fs::path set_aside(const fs::path& directory) {
  const fs::path old = free_old_name(directory);
  files::make_directories("Trainer", old);
  for (const char* name : own_entries) {
    std::error_code error;
    fs::rename(directory / name, old / name, error);
    if (error && error != std::errc::no_such_file_or_directory)
      fail<FormatError>("Trainer", "cannot move ", (directory / name).string(), " to ",
                        old.string(), ": ", error.message(), ". Check the permissions of both.");
  }
  sync_directory(old), sync_directory(directory);
  return old;
}
}  // namespace

std::vector<std::string> left_by_training(const fs::path& directory) {
  std::vector<std::string> names;
  for (const char* name : own_entries) {
    const fs::path path = directory / name;
    std::error_code error;
    const bool any = fs::is_directory(path, error) ? holds_anything(path)
                                                   : fs::file_size(path, error) > 0 && !error;
    if (any) names.emplace_back(name);
  }
  return names;
}

TrainingDirectory::TrainingDirectory(fs::path path, DirectoryOptions options,
                                     std::function<void(const std::string&)> tell)
    : path_(std::move(path)),
      checkpoints_(path_ / checkpoints_name),
      options_(std::move(options)),
      tell_(std::move(tell)),
      keeper_(checkpoints_) {}

DirectoryLock TrainingDirectory::lock() const {
  files::make_directories("Trainer", path_);
  DirectoryLock lock(path_);
  if (!lock.holds())
    tell_("the file system of " + path_.string() +
          " has no locks: nothing keeps another training out of it");
  return lock;
}

std::optional<FoundCheckpoint> TrainingDirectory::open() {
  files::make_directories("Trainer", checkpoints_);
  std::optional<FoundCheckpoint> found;
  if (options_.resume) found = latest_checkpoint(checkpoints_);
  if (!found) refuse_or_set_aside();
  remove_abandoned(checkpoints_);
  saved_ = found;
  return found;
}

/// Without a checkpoint to resume from, the directory must not have files that another training
/// would overwrite or append to.
void TrainingDirectory::refuse_or_set_aside() const {
  const std::vector<DamagedCheckpoint> damaged =
      options_.resume ? damaged_checkpoints(checkpoints_) : std::vector<DamagedCheckpoint>{};
  const std::vector<std::string> left =
      options_.resume ? std::vector<std::string>{} : left_by_training(path_);
  if (options_.resume ? damaged.empty() : left.empty()) return;
  if (options_.set_aside) {
    const fs::path old = set_aside(path_);
    files::make_directories("Trainer", checkpoints_);
    return tell_("what was in " + path_.string() + " is now in " + old.string());
  }
  if (!options_.resume && left.front() != checkpoints_name)
    fail<UsageError>("Trainer", path_.string(), " holds the logs of an earlier training, ",
                     left.front(), ", and no checkpoint. Pass .set_aside = true to move them to ",
                     free_old_name(path_).string(),
                     ", .resume = true to write after them, or name another directory.");
  if (!options_.resume)
    fail<UsageError>("Trainer", checkpoints_.string(),
                     " holds the checkpoints of an earlier training. ",
                     "Pass .resume = true to go on with it, .set_aside = true to move it to ",
                     free_old_name(path_).string(), ", or name another directory.");
  std::string reasons;
  constexpr std::size_t most_shown = 3;
  for (std::size_t i = 0; i < std::min(damaged.size(), most_shown); ++i)
    reasons +=
        (i ? "; " : "") + printable(damaged[i].path.filename().string() + ": " + damaged[i].reason);
  if (damaged.size() > most_shown)
    reasons += "; and " + std::to_string(damaged.size() - most_shown) + " more";
  fail<FormatError>("Trainer", "there is no valid checkpoint in ", checkpoints_.string(), ": ",
                    reasons,
                    ". Put a good copy there, or start over: pass .set_aside = true, which moves "
                    "what is there to ",
                    free_old_name(path_).string(), ", or name another directory.");
}

std::vector<std::shared_ptr<Logger>> TrainingDirectory::loggers() const {
  std::vector<std::shared_ptr<Logger>> all;
  if (options_.csv) all.push_back(std::make_shared<CsvLogger>(path_ / csv_name));
  if (options_.json_lines)
    all.push_back(std::make_shared<JsonLinesLogger>(path_ / json_lines_name));
  if (options_.tensorboard)
    all.push_back(std::make_shared<TensorBoardLogger>(path_ / tensorboard_name));
  return all;
}

void TrainingDirectory::save(const CheckpointState& at,
                             const std::function<void(const fs::path&)>& write) {
  // A damaged checkpoint may have the name; it is kept so that it can be examined.
  const fs::path path = free_name(checkpoints_, at.step);
  write(path);
  saved_ = FoundCheckpoint{path, at};
  remove_old();
}

void TrainingDirectory::remove_old() {
  const fs::path link = checkpoints_ / best_link, next = checkpoints_ / ".best";
  std::error_code ignored;
  const fs::file_type there = fs::symlink_status(link, ignored).type();
  // A file that is not a link belongs to the user.
  if (there == fs::file_type::not_found || there == fs::file_type::symlink) {
    const fs::path best = this->best();
    if (best.empty()) {
      if (there == fs::file_type::symlink) fs::remove(link, ignored);
    } else if (fs::read_symlink(link, ignored) != best.filename()) {
      fs::remove(next, ignored);
      std::error_code error;
      fs::create_directory_symlink(best.filename(), next, error);
      if (!error) fs::rename(next, link, error);
      if (error) fs::remove(link, ignored);  // rather none than a wrong one
    }
  }
  keeper_.keep(options_.retention);
}

bool TrainingDirectory::holds(const CheckpointState& at) const {
  const auto lacks = [&](const char* mark) {
    return saved_->state.numbers.contains(mark) && !at.numbers.contains(mark);
  };
  return saved_ && saved_->state.step == at.step && saved_->state.epoch == at.epoch &&
         saved_->state.batches == at.batches && !lacks(unfinished_step) &&
         !lacks(unplanned_checkpoint);
}

}  // namespace halftone::train
