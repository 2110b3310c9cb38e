// The checkpoints of one training: the directories under a root. To resume, any name without a
// leading dot is accepted if its manifest is valid. To remove, only names of checkpoint_name() are
// accepted, because only those are this library's.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <halftone/train/checkpoint.h>
#include <halftone/train/loggers.h>

namespace halftone::train {

/// The name of a link to the best checkpoint, next to it. It is not a checkpoint itself.
inline constexpr const char* best_link = "best";

struct FoundCheckpoint {
  std::filesystem::path path;
  CheckpointState state;
};

/// Returns every checkpoint under a root that verify_checkpoint() accepts, sorted by step, then
/// unfinished (unfinished_step) before finished, then by name. Reads all their bytes. Returns none
/// if the root does not exist. Throws FormatError if the root cannot be listed.
std::vector<FoundCheckpoint> valid_checkpoints(const std::filesystem::path& root);
/// Returns the last of valid_checkpoints(). Verifies the newest first, and stops at a valid one.
std::optional<FoundCheckpoint> latest_checkpoint(const std::filesystem::path& root);

/// A directory that verify_checkpoint() refuses, and the reason. It has files of a checkpoint, or
/// is empty with a checkpoint's name.
struct DamagedCheckpoint {
  std::filesystem::path path;
  std::string reason;  // "the checksum of /a/model.safetensors is not that of its manifest"
};
/// Returns all under a root, sorted by name, the last name first.
std::vector<DamagedCheckpoint> damaged_checkpoints(const std::filesystem::path& root);

/// Returns the step in a name of this library: "step-000000120", or "step-000000120-2" if the first
/// name was taken. Returns nullopt for any other name.
std::optional<int64_t> step_of_name(std::string_view name);
/// Returns the path under the root with the first such name for `step` that is free.
std::filesystem::path free_name(const std::filesystem::path& root, int64_t step);

/// Removes a checkpoint, also a damaged or incomplete one. Renames it first, so that a half removed
/// checkpoint is never visible. Throws UsageError, and changes nothing, if the path is not a
/// directory, has a name that begins with a dot, is empty, or has other files than a checkpoint's.
void remove_checkpoint(const std::filesystem::path& path);

/// Names of numbers in a state that mark a checkpoint. unfinished_step: a signal came before the
/// validation of its step; a resumed training first does that validation. unplanned_checkpoint: it
/// was saved because the training was interrupted, not because of the options; a later checkpoint
/// replaces it.
inline constexpr const char *unfinished_step = "state.unfinished_step",
                            *unplanned_checkpoint = "state.unplanned_checkpoint";

struct Retention {
  /// How many of the newest checkpoints to keep, by the step in their state; at least 1. Unplanned
  /// checkpoints count neither here nor among the best. They are removed when there is a newer one.
  int64_t last = 1;
  int64_t best = 0;  // how many of the best to keep in addition, ranked by `metric`, a name in
                     // CheckpointState::numbers
  std::string metric{};
  bool larger_is_better = false;
};

/// Removes old checkpoints again and again during a training. Reads a checkpoint again only if the
/// size, time or inode of one of its files has changed.
class Keeper {
 public:
  explicit Keeper(std::filesystem::path root) : root_(std::move(root)) {}

  /// Removes the checkpoints that the retention does not keep, and returns their paths. Considers
  /// only names that step_of_name() accepts. First verifies all bytes of the checkpoints that it
  /// keeps: a damaged one does not count, so it never displaces a good one. A checkpoint without
  /// the metric, or with NaN, is never among the best. A checkpoint with other files in it stays.
  /// Throws UsageError for numbers out of range, and if `best` is above 0 without a metric.
  std::vector<std::filesystem::path> keep(const Retention& retention);
  /// Returns the best checkpoint by the retention's metric, after verifying all its bytes. If two
  /// are equal, returns the newer. Considers the same names as keep(). Returns nullopt if there is
  /// none, or if retention.best is 0.
  std::optional<std::filesystem::path> best(const Retention& retention);

 private:
  /// Inode, size and time of each of a checkpoint's files.
  using Stamp = std::array<uint64_t, 12>;
  struct Known {
    Stamp stamp{};
    bool state_read = false;
    std::optional<CheckpointState> state{};  // nullopt: manifest, state or sizes are wrong
    std::optional<bool> valid{};             // result for all bytes, if they have been read
  };
  using Name = std::string;
  Known& look_at(const Name& name);
  const std::optional<CheckpointState>& state_of(const Name& name);
  bool verified(const Name& name);
  std::vector<Name> names();
  std::vector<Name> by_step(std::vector<Name> names);
  std::vector<Name> best_of(const std::vector<Name>& names, const Retention& retention);

  std::filesystem::path root_;
  std::map<Name, Known> known_{};
};

/// Removes checkpoints as Keeper::keep() does, once.
std::vector<std::filesystem::path> keep(const std::filesystem::path& root,
                                        const Retention& retention);
inline std::vector<std::filesystem::path> keep_last(const std::filesystem::path& root, int64_t n) {
  return keep(root, {.last = n});
}

/// Removes the temporary directories of killed processes, and returns their paths. Keeps the
/// directories that a living process is writing, on this machine or on another whose file locks
/// reach here. On a file system without locks it cannot tell them apart, and removes nothing.
std::vector<std::filesystem::path> remove_abandoned(const std::filesystem::path& root);

// The directory of one training: its checkpoints and its log files. Only one training at a time
// uses it. It resumes from the newest valid checkpoint, and never overwrites what another training
// left.

struct DirectoryOptions {
  Retention retention{};                   // of checkpoints
  bool resume = false, set_aside = false;  // as in TrainerOptions
  bool csv = false, json_lines = false, tensorboard = false;
};

/// Returns the names of what a training has left in a directory: "checkpoints" if that folder is
/// not empty, then the logs that are not empty.
std::vector<std::string> left_by_training(const std::filesystem::path& directory);

class TrainingDirectory {
 public:
  /// Changes nothing on the disk. The other functions call `tell` with messages for people.
  TrainingDirectory(
      std::filesystem::path path, DirectoryOptions options,
      std::function<void(const std::string&)> tell = [](const std::string&) {});

  /// Makes the directory and locks it. Calls `tell` if the file system has no locks. Throws what
  /// DirectoryLock throws.
  [[nodiscard]] DirectoryLock lock() const;
  /// Returns the checkpoint to resume from; nullopt if there is none, or if `resume` is false. If
  /// `resume` is false but an earlier training has left checkpoints or logs, or if `resume` is true
  /// but all checkpoints are damaged, sets aside what is there. Without `set_aside`, throws
  /// UsageError in the first case, FormatError in the second. Removes incomplete files of killed
  /// processes. Throws FormatError if the system refuses.
  std::optional<FoundCheckpoint> open();
  /// Opens metrics.csv, metrics.jsonl and tensorboard/, each if the options ask for it.
  std::vector<std::shared_ptr<Logger>> loggers() const;

  /// Calls `write` with a free path for a checkpoint of at.step, and then remove_old().
  void save(const CheckpointState& at,
            const std::function<void(const std::filesystem::path&)>& write);
  /// Makes the link checkpoints/best point to the best checkpoint, or removes the link if none
  /// is the best. A file system without links gets no link. Then removes the checkpoints that the
  /// retention does not keep.
  void remove_old();
  /// Returns the path of Keeper::best(); empty if there is none.
  std::filesystem::path best() { return keeper_.best(options_.retention).value_or(""); }
  /// Returns whether the last checkpoint that was saved, or that open() found, has the position
  /// `at`. One that is marked as unfinished or unplanned counts only if `at` has that mark.
  bool holds(const CheckpointState& at) const;
  const std::filesystem::path& last_saved() const { return saved_.value().path; }

 private:
  void refuse_or_set_aside() const;

  std::filesystem::path path_, checkpoints_;
  DirectoryOptions options_;
  std::function<void(const std::string&)> tell_;
  Keeper keeper_;
  std::optional<FoundCheckpoint> saved_{};
};

}  // namespace halftone::train
