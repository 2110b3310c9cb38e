// The directory of one training: its checkpoints, and its log files beside them. One training at a
// time is in it, which goes on from the newest valid checkpoint; none begins over what another
// left.
//
//   train::TrainingDirectory directory("runs/first", {.last = 2});
//   const train::DirectoryLock lock = directory.lock();
//   if (const auto found = directory.open({.resume = true}))
//     state = train::load_training(found->path, training);
//   ...
//   directory.save(state, [&](const auto& path) { train::save_training(path, training, state); });
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <halftone/train/checkpoints.h>
#include <halftone/train/directory_lock.h>
#include <halftone/train/logger.h>

namespace halftone::train {

class TrainingDirectory {
 public:
  /// Touches nothing yet. `tell` gets lines that people should read.
  explicit TrainingDirectory(
      std::filesystem::path path, Retention retention = {},
      std::function<void(const std::string&)> tell = [](const std::string&) {});

  /// Makes the directory and locks it; tells if its file system has no locks. Throws as
  /// DirectoryLock.
  [[nodiscard]] DirectoryLock lock() const;

  struct Earlier {
    bool resume = false;     // TrainerOptions says what each is
    bool set_aside = false;  // and this counts only where there is nothing to go on from
  };
  /// The checkpoint to go on from, if there is one. Removes what killed processes left half done.
  /// Throws UsageError where checkpoints are there and none of the two is asked for, FormatError
  /// where all are damaged, or the system refuses.
  std::optional<FoundCheckpoint> open(const Earlier& earlier);
  struct LogFiles {
    bool csv = false, json_lines = false, tensorboard = false;
  };
  /// Opens metrics.csv, metrics.jsonl, tensorboard/.
  std::vector<std::shared_ptr<Logger>> loggers(const LogFiles& which) const;

  /// Has a checkpoint written under the next free name, and removes those that need not be kept.
  void save(const CheckpointState& at,
            const std::function<void(const std::filesystem::path&)>& write);
  /// Removes what the retention does not name.
  void remove_old() { keeper_.keep(retention_); }
  /// Whether the checkpoint that was saved last, or found by open(), is of this place.
  bool holds(const CheckpointState& at) const;
  const std::filesystem::path& last_saved() const { return saved_.value().path; }

 private:
  void refuse_or_set_aside(const Earlier& earlier) const;

  std::filesystem::path path_, checkpoints_;
  Retention retention_;
  std::function<void(const std::string&)> tell_;
  Keeper keeper_;
  std::optional<FoundCheckpoint> saved_{};
};

}  // namespace halftone::train
