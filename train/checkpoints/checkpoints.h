// The checkpoints of one training: the directories under a root. To go on from one, names do not
// matter, except that those with a dot in front are no checkpoints; what counts is a valid
// manifest. To remove one, its name does: only those of checkpoint_name() are this library's.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <halftone/train/checkpoints/checkpoint.h>

namespace halftone::train {

struct FoundCheckpoint {
  std::filesystem::path path;
  CheckpointState state;
};

/// Every checkpoint under a root that verify_checkpoint() accepts, by step, equal steps by name.
/// Reads all their bytes. A root that does not exist has none; one that cannot be listed is a
/// FormatError.
std::vector<FoundCheckpoint> valid_checkpoints(const std::filesystem::path& root);
/// The last of these. Verifies from the newest on and stops at the first valid one.
std::optional<FoundCheckpoint> latest_checkpoint(const std::filesystem::path& root);

/// What looks like a checkpoint (it holds files of one, or has the name and holds nothing), but
/// verify_checkpoint() refuses, and why; the newest name first.
struct DamagedCheckpoint {
  std::filesystem::path path;
  std::string reason;  // "the checksum of /a/model.safetensors is not that of its manifest"
};
std::vector<DamagedCheckpoint> damaged_checkpoints(const std::filesystem::path& root);

/// The step in a name that this library gives: "step-000000120", or "step-000000120-2" where the
/// first was taken. Nothing for any other.
std::optional<int64_t> step_of_name(std::string_view name);
/// The next such name for a step that nothing under the root has yet.
std::filesystem::path free_name(const std::filesystem::path& root, int64_t step);

/// Takes the name away first, so that no half of a checkpoint is ever seen. Throws UsageError for a
/// directory that holds anything but the files of a checkpoint, or not all of a name; then it is
/// untouched. Damaged checkpoints can be removed, too.
void remove_checkpoint(const std::filesystem::path& path);

struct Retention {
  int64_t last = 1;  // how many of the newest, by the step in their state; at least 1
  int64_t best = 0;  // besides, the best so many by `metric`, a name in CheckpointState::numbers
  std::string metric{};
  bool larger_is_better = false;
};

/// Applies a retention again and again, as a training does that saves. What it has read once is
/// read again only if size, time or inode of one of its files has changed.
class Keeper {
 public:
  explicit Keeper(std::filesystem::path root) : root_(std::move(root)) {}

  /// Removes the checkpoints that the retention does not name and returns their paths. Only those
  /// with the names of step_of_name() are looked at, and none before there is one too many. Before
  /// anything goes, all bytes of what is kept have been verified: a damaged one never counts, so it
  /// never costs a good one its place. One without the metric, or with NaN, is never among the
  /// best; one that holds other files, too, is left alone. Throws UsageError for numbers out of
  /// range.
  std::vector<std::filesystem::path> keep(const Retention& retention);

 private:
  /// Inode, size and time of each of a checkpoint's files.
  using Stamp = std::array<uint64_t, 12>;
  struct Known {
    Stamp stamp{};
    bool state_read = false;
    std::optional<CheckpointState> state{};  // none: manifest, state or sizes are wrong
    std::optional<bool> valid{};             // of all bytes, if they have been read
  };
  using Name = std::string;
  Known& look_at(const Name& name);
  const std::optional<CheckpointState>& state_of(const Name& name);
  bool verified(const Name& name);
  std::vector<Name> by_step(std::vector<Name> names);
  std::vector<Name> best_of(const std::vector<Name>& names, const Retention& retention);

  std::filesystem::path root_;
  std::map<Name, Known> known_{};
};

/// The same once.
std::vector<std::filesystem::path> keep(const std::filesystem::path& root,
                                        const Retention& retention);
inline std::vector<std::filesystem::path> keep_last(const std::filesystem::path& root, int64_t n) {
  return keep(root, {.last = n});
}

/// Removes what killed processes have left under temporary names, and returns these paths. What a
/// living process (on any machine whose file locks reach here) is writing stays. A file system
/// without locks cannot tell the two apart: there nothing is removed.
std::vector<std::filesystem::path> remove_abandoned(const std::filesystem::path& root);

}  // namespace halftone::train
