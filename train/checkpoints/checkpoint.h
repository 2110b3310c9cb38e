// One checkpoint: a directory that is complete and verified, or does not exist.
//   model.safetensors      the model's tensors, readable by anything that reads safetensors
//   optimizer.safetensors  everything else that a training needs to continue
//   state.json             the training's position; numbers and texts of the caller
//   manifest.json          size and CRC-32 of the others; written last
// docs/reliability.md says how it survives crashes, and what is not guaranteed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include <halftone/core/named_tensors.h>
#include <halftone/optim/optimizer.h>

namespace halftone::train {

/// The position of a training.
struct CheckpointState {
  int64_t step = 0;     // steps taken
  int64_t epoch = 0;    // the current epoch, from 0
  int64_t batches = 0;  // finished batches of this epoch
  /// Metrics and other numbers of the caller, restored to the bit (a NaN stays a NaN).
  std::map<std::string, double> numbers{};
  std::map<std::string, std::string> texts{};  // UTF-8
};

struct Checkpoint {
  CheckpointState state;
  /// "model.*" go into model.safetensors without that prefix, all others into the other file.
  optim::NamedTensors tensors;
};

/// Writes a checkpoint to a path that does not exist yet, in a directory that exists. On return it
/// is on the disk. Throws UsageError for a path that exists, starts with a dot or has no name, and
/// for negative positions. Throws FormatError if the system refuses (space, permission). After an
/// error, nothing of the checkpoint is left and nothing else has changed.
void save_checkpoint(const std::filesystem::path& path, const Checkpoint& checkpoint);
/// Does the same, but asks for the tensors one after the other.
void save_checkpoint(const std::filesystem::path& path, const CheckpointState& state,
                     const TensorSource& tensors);
/// Reads a checkpoint after verifying its manifest, sizes and checksums. Throws FormatError
/// "[checkpoint] ..." if anything is wrong.
Checkpoint load_checkpoint(const std::filesystem::path& path);
/// Makes the same checks without memory for the tensors: reads every byte once.
CheckpointState verify_checkpoint(const std::filesystem::path& path);
/// Checks only manifest.json, state.json and the sizes.
CheckpointState read_checkpoint_state(const std::filesystem::path& path);

/// Returns a name such as "step-000001234", which sorts by step in a listing.
std::string checkpoint_name(int64_t step);

}  // namespace halftone::train
