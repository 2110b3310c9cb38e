// Resumes from, refuses or sets aside what is in a training's directory, and removes older or worse
// checkpoints when the training saves.
#include <halftone/train/checkpoints/training_directory.h>

#include <algorithm>
#include <array>

#include <halftone/core/error.h>
#include <halftone/train/durable_files.h>
#include <halftone/train/loggers.h>

namespace halftone::train {

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
  // What is not a link is the user's.
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
