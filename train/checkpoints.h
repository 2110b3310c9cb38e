// The checkpoints of one training: the directories under a root. Names do not matter, except that
// those with a dot in front are no checkpoints; what counts is a valid manifest.
#pragma once

#include <optional>
#include <vector>

#include <halftone/train/checkpoint.h>

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

/// Takes the name away first, so that no half of a checkpoint is ever seen. Throws UsageError for a
/// directory that holds anything but the files of a checkpoint, or not all of a name; then it is
/// untouched. Damaged checkpoints can be removed, too.
void remove_checkpoint(const std::filesystem::path& path);

struct Retention {
  int64_t last = 1;  // the newest so many; at least 1
  int64_t best = 0;  // besides, the best so many by `metric`, a name in CheckpointState::numbers
  std::string metric{};
  bool larger_is_better = false;
};

/// Removes the checkpoints that the retention does not name and returns their paths. All bytes of
/// what is kept have been verified: a damaged one never counts, so it never costs a good one its
/// place. One without the metric, or with NaN, is never among the best; one that holds other files,
/// too, is left alone. Throws UsageError for numbers out of range.
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
