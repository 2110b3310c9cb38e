// The directory of one training: its checkpoints and its log files. Only one training at a time
// uses it. It resumes from the newest valid checkpoint, and never overwrites what another training
// left.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <halftone/train/checkpoints.h>
#include <halftone/train/checkpoints/directory_lock.h>
#include <halftone/train/logging/logger.h>

namespace halftone::train {

struct DirectoryOptions {
  Retention retention{};                   // of checkpoints
  bool resume = false, set_aside = false;  // as in TrainerOptions
  bool csv = false, json_lines = false, tensorboard = false;
};

/// Returns the names of what a training has left in a directory: its checkpoints first, then logs
/// that are not empty.
std::vector<std::string> left_by_training(const std::filesystem::path& directory);

class TrainingDirectory {
 public:
  /// Changes nothing yet. `tell` gets lines for people.
  TrainingDirectory(
      std::filesystem::path path, DirectoryOptions options,
      std::function<void(const std::string&)> tell = [](const std::string&) {});

  /// Makes the directory and locks it; tells if its file system has no locks. Throws as
  /// DirectoryLock.
  [[nodiscard]] DirectoryLock lock() const;
  /// Returns the checkpoint to resume from, if there is one. If there is none, refuses or sets
  /// aside what an earlier training left, and removes incomplete files of killed processes. Throws
  /// UsageError for checkpoints and logs that may be neither resumed nor set aside. Throws
  /// FormatError if all checkpoints are damaged, or if the system refuses.
  std::optional<FoundCheckpoint> open();
  /// Opens those of metrics.csv, metrics.jsonl and tensorboard/ that are wanted.
  std::vector<std::shared_ptr<Logger>> loggers() const;

  /// Calls `write` with the next free name, and then removes checkpoints that need not be kept.
  void save(const CheckpointState& at,
            const std::function<void(const std::filesystem::path&)>& write);
  /// Removes the checkpoints that the retention does not keep. Before that, makes the link
  /// checkpoints/best name the best one, or removes the link if there is none. A file system
  /// without links has no such name.
  void remove_old();
  /// Returns the best checkpoint as Keeper::best(); empty if there is none.
  std::filesystem::path best() { return keeper_.best(options_.retention).value_or(""); }
  /// Returns whether the last checkpoint, saved or found by open(), is of this position, and as
  /// finished and as planned as this one.
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
