// Files that survive a crash, in a directory that one training holds.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <halftone/amp/training.h>
#include <halftone/core/files.h>
#include <halftone/core/named_tensors.h>
#include <halftone/data/data_loader.h>
#include <halftone/optim/optimizer.h>
#include <halftone/optim/optimizers.h>

namespace halftone::train {

// System calls for checkpoints: files and directories that are on the disk when a call returns,
// names that never replace existing ones, checksums. Every failure is a FormatError "[checkpoint]
// ..." that names the path and the system's reason.

using files::Descriptor;

/// Writes a new file, and waits until it is on the disk. A path that exists is an error.
void write_durably(const std::filesystem::path& path, std::string_view bytes);
/// Waits until the names in a directory are on the disk, if the file system supports that.
void sync_directory(const std::filesystem::path& path);
/// Renames a directory. Returns false, and changes nothing, if the name `to` exists.
bool rename_to_new(const std::filesystem::path& from, const std::filesystem::path& to);
/// A new temporary directory. While `lock` is open, this process holds a lock on the directory, so
/// that no other process removes it as abandoned.
struct TemporaryName {
  std::filesystem::path path;
  Descriptor lock;
};
/// Makes the directory temporary_name(path, "").
TemporaryName make_temporary(const std::filesystem::path& path);
/// Returns a new path for a temporary directory next to `path`: `.tmp-<word><name>-<pid>-<n>` with
/// the name of `path`, cut if it is long. Does not make the directory.
std::filesystem::path temporary_name(const std::filesystem::path& path, std::string_view word);
bool is_temporary(const std::filesystem::path& path);
/// Opens and locks the directory. Returns no descriptor if another process has locked it, if it is
/// gone, or if the file system has no locks.
Descriptor try_lock(const std::filesystem::path& directory);

/// Reads a whole regular file (not a link, pipe or device) of at most `limit` bytes.
std::string read_text(const std::filesystem::path& path, uint64_t limit);
/// The size of a regular file, and the CRC-32 of its bytes (the CRC that zip and PNG use).
struct FileSum {
  uint64_t bytes = 0;
  uint32_t crc32 = 0;
  bool operator==(const FileSum&) const = default;
};
FileSum sum_of(const std::filesystem::path& path);
/// Returns the size of a file without reading it.
uint64_t size_of(const std::filesystem::path& path);

// Allows one training at a time in a directory: two would mix their logs and remove each other's
// checkpoints. The lock is the system's (flock on the file .lock), so it ends with the process even
// if that is killed. The file's text only tells others which process holds the lock.

class DirectoryLock {
 public:
  /// Takes the lock until this object is destroyed. Throws UsageError if another process, or
  /// another object of this process, holds it. Throws FormatError if the file cannot be made, is
  /// not a regular file, or has a second name (a hard link). `op` begins the messages.
  /// `system_lock`: a substitute for flock(2) in tests; null: flock(2).
  explicit DirectoryLock(const std::filesystem::path& directory, std::string_view op = "Trainer",
                         int (*system_lock)(int file, int operation) = nullptr);

  /// Returns false if the file system has no locks. Then nothing keeps another training out.
  bool holds() const { return holds_; }

 private:
  files::Descriptor file_;
  bool holds_ = false;
};

// One checkpoint: a directory that is complete and verified, or does not exist.
//   model.safetensors      the model's tensors, readable by anything that reads safetensors
//   optimizer.safetensors  everything else that a training needs to continue
//   state.json             the training's position; numbers and texts of the caller
//   manifest.json          size and CRC-32 of the others; written last
// docs/reliability.md says how it survives crashes, and what is not guaranteed.

/// The position of a training.
struct CheckpointState {
  int64_t step = 0;     // steps taken
  int64_t epoch = 0;    // the current epoch, from 0
  int64_t batches = 0;  // finished batches of this epoch
  /// Numbers that the caller stores, such as metrics. Loading restores their exact bits; of a NaN,
  /// only that it is a NaN.
  std::map<std::string, double> numbers{};
  std::map<std::string, std::string> texts{};  // UTF-8
};

struct Checkpoint {
  CheckpointState state;
  /// "model.*" go into model.safetensors without that prefix, others into optimizer.safetensors.
  optim::NamedTensors tensors;
};

/// Writes a checkpoint to a path that does not exist yet, in a directory that exists. On return it
/// is on the disk. Throws UsageError if the path exists, if its name is empty or starts with a dot,
/// if the position is negative, or if numbers and texts are not UTF-8 or exceed state_limit. Throws
/// FormatError if the system refuses (space, permission). After an error, nothing of the checkpoint
/// is left and nothing else has changed.
void save_checkpoint(const std::filesystem::path& path, const Checkpoint& checkpoint);
/// The same, but gets the tensors from `tensors` one after the other, which takes less memory.
void save_checkpoint(const std::filesystem::path& path, const CheckpointState& state,
                     const TensorSource& tensors);
/// Reads a checkpoint after verifying its manifest, sizes and checksums. Throws FormatError
/// "[checkpoint] ..." if anything is wrong.
Checkpoint load_checkpoint(const std::filesystem::path& path);
/// Makes the checks of load_checkpoint() and returns the state. Reads every byte, keeps no tensors.
CheckpointState verify_checkpoint(const std::filesystem::path& path);
/// Returns the state, but checks only manifest.json, state.json and the sizes of the files.
CheckpointState read_checkpoint_state(const std::filesystem::path& path);

/// Returns a name such as "step-000001234", which sorts by step in a listing.
std::string checkpoint_name(int64_t step);

// The two JSON files of a checkpoint. Each has exactly one valid spelling: a text that does not
// print again to the same bytes is refused. So duplicate keys, unknown names, other orders and
// other forms of numbers need no rules of their own.

inline constexpr std::string_view model_file = "model.safetensors",
                                  optimizer_file = "optimizer.safetensors",
                                  state_file = "state.json", manifest_file = "manifest.json";
/// A manifest lists exactly these files, in this order.
inline constexpr std::array listed_files{model_file, optimizer_file, state_file};
inline constexpr uint64_t manifest_limit = uint64_t(1) << 12, state_limit = uint64_t(1) << 24;

struct Manifest {
  std::array<FileSum, listed_files.size()> files;
};

std::string manifest_text(const Manifest& manifest);
std::string state_text(const CheckpointState& state);
/// Parse the texts of manifest.json and state.json. Throw a FormatError that names `path`.
Manifest parse_manifest(const std::string& text, const std::string& path);
CheckpointState parse_state(const std::string& text, const std::string& path);

// A whole training in a checkpoint: the state of amp::Training (weights, optimizer, master weights,
// loss scale, random generator, strategy), the schedule of its rates, and its place in the data. A
// resumed training has the same bits as one that never stopped:
//
//   int64_t step = 0, epoch = 0;
//   if (const auto found = train::latest_checkpoint(root)) {
//     const auto at = train::load_training(found->path, training, &scheduler);
//     loader.resume(at.epoch, at.batches), step = at.step, epoch = at.epoch;
//   }

/// Saves a training; call it between two steps. `others`: tensors of the caller, saved as well.
/// Throws what save_checkpoint() throws. If several processes train together, all must call this
/// function and load_training(); only the first writes and reads, and only its path matters.
void save_training(const std::filesystem::path& path, const amp::Training& training,
                   const CheckpointState& state, const optim::LrScheduler* scheduler = nullptr,
                   const optim::NamedTensors& others = {});
/// Loads a checkpoint into a training. Throws what load_checkpoint() throws. Throws UsageError or
/// ShapeError, and changes nothing, if the model, strategy or schedule differs, or if only one side
/// has a schedule. `convert`: see Training::load_state_dict(). `others` receives the tensors that
/// save_training() got as `others`; null: they are ignored.
CheckpointState load_training(const std::filesystem::path& path, amp::Training& training,
                              optim::LrScheduler* scheduler = nullptr,
                              amp::Convert convert = amp::Convert::refuse,
                              optim::NamedTensors* others = nullptr);
/// The same for a checkpoint that has been read. If several processes train, each passes the state,
/// but only the first passes the tensors. `from` names the checkpoint in messages.
CheckpointState load_training(Checkpoint checkpoint, std::string_view from, amp::Training& training,
                              optim::LrScheduler* scheduler, amp::Convert convert,
                              optim::NamedTensors* others);

// --- other conditions of an exact resume

/// Returns the loader's numbers that determine an epoch's batches, for CheckpointState::numbers.
std::map<std::string, double> loader_numbers(const data::DataLoader& loader);
/// Returns `now`. If its seed was drawn and not given, the result has the seed saved in `before`.
data::DataLoader with_seed_of(const std::map<std::string, double>& before,
                              const data::DataLoader& now);
/// Throws UsageError if loader_numbers(now) differ from those in `before`. A place in an epoch has
/// a meaning only if the batches are the same.
void require_same_loader(const std::map<std::string, double>& before, const data::DataLoader& now);
/// Throws UsageError unless environment_of(device) is state.texts["environment"].
void require_same_environment(const CheckpointState& state, Device device);

/// An optimizer's options by name: "lr", "betas", ..., or "lr of group 0", ... if there are several
/// parameter groups. With a scheduler, "lr" is the base rate that the scheduler multiplies.
using OptionValues = std::map<std::string, std::vector<double>>;
OptionValues option_values(const optim::Optimizer& optimizer, const optim::LrScheduler* scheduler);
/// Returns a line for each difference between a program and the checkpoint that it resumes, whose
/// option_values() apply. `at` is the checkpoint's state: between two epochs its loader_numbers()
/// are compared with those of `loader`, which apply.
std::vector<std::string> changes(const OptionValues& program, const OptionValues& checkpoint,
                                 const CheckpointState& at, const data::DataLoader& loader);

}  // namespace halftone::train
