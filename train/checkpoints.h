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

/// Returns every checkpoint under a root that verify_checkpoint() accepts: by step, an unfinished
/// one first, then by name. Reads all their bytes. Returns none if the root does not exist. Throws
/// FormatError if the root cannot be listed.
std::vector<FoundCheckpoint> valid_checkpoints(const std::filesystem::path& root);
/// Returns the last of valid_checkpoints(). Verifies the newest first, and stops at a valid one.
std::optional<FoundCheckpoint> latest_checkpoint(const std::filesystem::path& root);

/// A directory that looks like a checkpoint (it has files of one, or is empty with a checkpoint's
/// name) but that verify_checkpoint() refuses, with the reason. The newest name comes first.
struct DamagedCheckpoint {
  std::filesystem::path path;
  std::string reason;  // "the checksum of /a/model.safetensors is not that of its manifest"
};
std::vector<DamagedCheckpoint> damaged_checkpoints(const std::filesystem::path& root);

/// Returns the step in a name of this library: "step-000000120", or "step-000000120-2" if the first
/// name was taken. Returns nullopt for any other name.
std::optional<int64_t> step_of_name(std::string_view name);
/// Returns the first such name for `step` ("step-000000120", ...) that is free under the root.
std::filesystem::path free_name(const std::filesystem::path& root, int64_t step);

/// Removes a checkpoint, also a damaged or incomplete one. Renames it first, so that a half removed
/// checkpoint is never visible. Throws UsageError, and changes nothing, for a name that begins with
/// a dot, and for a directory that is empty or has other files than a checkpoint's.
void remove_checkpoint(const std::filesystem::path& path);

/// Names of numbers in a state that mark a checkpoint. unfinished_step: a signal came before the
/// validation of its step; a resumed training first does that validation. unplanned_checkpoint: it
/// was saved because the training was interrupted, not because of the options; a later checkpoint
/// replaces it.
inline constexpr const char *unfinished_step = "state.unfinished_step",
                            *unplanned_checkpoint = "state.unplanned_checkpoint";

struct Retention {
  /// How many of the newest checkpoints to keep, by the step in their state; at least 1. Unplanned
  /// ones count neither here nor among the best. They are removed when there is a newer one.
  int64_t last = 1;
  int64_t best = 0;  // number of best to keep in addition, by `metric`, a name in
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
  /// Throws UsageError for numbers out of range.
  std::vector<std::filesystem::path> keep(const Retention& retention);
  /// Returns the best checkpoint by the retention's metric, of equal ones the newer; all its bytes
  /// are verified. Considers the same names as keep(). Returns nullopt if there is none, or if
  /// retention.best is 0.
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

/// Removes checkpoints as Keeper::keep(), once.
std::vector<std::filesystem::path> keep(const std::filesystem::path& root,
                                        const Retention& retention);
inline std::vector<std::filesystem::path> keep_last(const std::filesystem::path& root, int64_t n) {
  return keep(root, {.last = n});
}

/// Removes the temporary directories of killed processes, and returns their paths. Keeps those that
/// a living process is writing (on any machine whose file locks reach here). On a file system
/// without locks it cannot tell which these are, and removes nothing.
std::vector<std::filesystem::path> remove_abandoned(const std::filesystem::path& root);

// The directory of one training: its checkpoints and its log files. Only one training at a time
// uses it. It resumes from the newest valid checkpoint, and never overwrites what another training
// left.

struct DirectoryOptions {
  Retention retention{};                   // of checkpoints
  bool resume = false, set_aside = false;  // as in TrainerOptions
  bool csv = false, json_lines = false, tensorboard = false;
};

/// Returns the names of what a training has left in a directory: "checkpoints" if that folder holds
/// any, then the logs that are not empty.
std::vector<std::string> left_by_training(const std::filesystem::path& directory);

class TrainingDirectory {
 public:
  /// Changes nothing on the disk. `tell` receives messages for people.
  TrainingDirectory(
      std::filesystem::path path, DirectoryOptions options,
      std::function<void(const std::string&)> tell = [](const std::string&) {});

  /// Makes the directory and locks it. Calls `tell` if the file system has no locks. Throws what
  /// DirectoryLock throws.
  [[nodiscard]] DirectoryLock lock() const;
  /// Returns the checkpoint to resume from, if there is one. If there is none, refuses or sets
  /// aside what an earlier training left, and removes incomplete files of killed processes. Throws
  /// UsageError for checkpoints and logs that may be neither resumed nor set aside. Throws
  /// FormatError if all checkpoints are damaged, or if the system refuses.
  std::optional<FoundCheckpoint> open();
  /// Opens metrics.csv, metrics.jsonl and tensorboard/, each if the options ask for it.
  std::vector<std::shared_ptr<Logger>> loggers() const;

  /// Calls `write` with the next free name, and then removes checkpoints that need not be kept.
  void save(const CheckpointState& at,
            const std::function<void(const std::filesystem::path&)>& write);
  /// Makes the link checkpoints/best point to the best checkpoint, or removes the link if there is
  /// none. Then removes the checkpoints that the retention does not keep. File systems without
  /// links get none.
  void remove_old();
  /// Returns the path of Keeper::best(); empty if there is none.
  std::filesystem::path best() { return keeper_.best(options_.retention).value_or(""); }
  /// Returns whether the last checkpoint, saved or found by open(), has the position `at`, and is
  /// not marked as unfinished or unplanned unless `at` is.
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
