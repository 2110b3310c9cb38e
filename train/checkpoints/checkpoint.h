// One checkpoint: a directory that is complete and verified, or is not there.
//   model.safetensors      the model's tensors, readable by anything that reads safetensors
//   optimizer.safetensors  everything else that a training goes on from
//   state.json             where the training stands; numbers and texts of the caller
//   manifest.json          size and CRC-32 of the others; written last
// How it survives crashes, and what is not promised: docs/reliability.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include <halftone/core/tensor_source.h>
#include <halftone/optim/optimizer.h>

namespace halftone::train {

/// Where a training stands.
struct CheckpointState {
  int64_t step = 0;     // steps taken
  int64_t epoch = 0;    // the current one, from 0
  int64_t batches = 0;  // of this epoch, that are done
  /// Metrics and whatever else the caller wants back, kept to the bit (a NaN stays a NaN).
  std::map<std::string, double> numbers{};
  std::map<std::string, std::string> texts{};  // UTF-8
};

struct Checkpoint {
  CheckpointState state;
  /// "model.*" go into model.safetensors without that prefix, all others into the other file.
  optim::NamedTensors tensors;
};

/// Writes a checkpoint to a path that nothing has yet, in a directory that exists. On return it is
/// on the disk. Throws UsageError for a path that is taken, that starts with a dot or holds no
/// name, and for negative positions; FormatError where the system refuses (space, permission). Then
/// nothing is left of it and nothing else has changed.
void save_checkpoint(const std::filesystem::path& path, const Checkpoint& checkpoint);
/// The same of tensors that are asked for one after the other.
void save_checkpoint(const std::filesystem::path& path, const CheckpointState& state,
                     const TensorSource& tensors);
/// Reads a checkpoint after its manifest, sizes and checksums have been verified. Throws
/// FormatError "[checkpoint] ..." for anything else.
Checkpoint load_checkpoint(const std::filesystem::path& path);
/// The same checks, without the tensors' memory: reads every byte once.
CheckpointState verify_checkpoint(const std::filesystem::path& path);
/// manifest.json, state.json and the sizes only.
CheckpointState read_checkpoint_state(const std::filesystem::path& path);

/// "step-000001234": sorts by step in a listing.
std::string checkpoint_name(int64_t step);

}  // namespace halftone::train
