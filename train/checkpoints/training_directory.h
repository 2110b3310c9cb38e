// The directory of one training: its checkpoints, and its log files beside them. One training at a
// time is in it, which goes on from the newest valid checkpoint; none begins over what another
// left.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <halftone/train/checkpoints/checkpoints.h>
#include <halftone/train/checkpoints/directory_lock.h>
#include <halftone/train/logging/logger.h>

namespace halftone::train {

struct DirectoryOptions {
  Retention retention{};                   // of checkpoints
  bool resume = false, set_aside = false;  // what these are, TrainerOptions says
  bool csv = false, json_lines = false, tensorboard = false;
};

/// The names in a directory under which a training has left something: its checkpoints first, then
/// logs that are not empty.
std::vector<std::string> left_by_training(const std::filesystem::path& directory);

class TrainingDirectory {
 public:
  /// Touches nothing yet. `tell` gets lines that people should read.
  TrainingDirectory(
      std::filesystem::path path, DirectoryOptions options,
      std::function<void(const std::string&)> tell = [](const std::string&) {});

  /// Makes the directory and locks it; tells if its file system has no locks. Throws as
  /// DirectoryLock.
  [[nodiscard]] DirectoryLock lock() const;
  /// The checkpoint to go on from, if there is one. Where there is none, what is left of an earlier
  /// training is refused or set aside; what killed processes left half done is removed. Throws
  /// UsageError for checkpoints and logs that may be neither resumed nor set aside, FormatError
  /// where all are damaged, or the system refuses.
  std::optional<FoundCheckpoint> open();
  /// Opens metrics.csv, metrics.jsonl, tensorboard/, or those of them that are wanted.
  std::vector<std::shared_ptr<Logger>> loggers() const;

  /// Has a checkpoint written under the next free name, and removes those that need not be kept.
  void save(const CheckpointState& at,
            const std::function<void(const std::filesystem::path&)>& write);
  /// Removes what the retention does not name.
  void remove_old() { keeper_.keep(options_.retention); }
  /// Whether the checkpoint that was saved last, or found by open(), is of this place.
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
