// Writes everything under a temporary name, syncs, renames, and syncs the parent. At every moment
// the final name does not exist, or all of its bytes are on the disk.
#include <halftone/train/checkpoints/checkpoint.h>

#include <algorithm>

#include <halftone/core/error.h>
#include <halftone/core/files.h>
#include <halftone/core/named_tensors.h>
#include <halftone/train/checkpoints/manifest.h>

namespace halftone::train {

namespace fs = std::filesystem;

namespace {
constexpr std::string_view model_prefix = "model.";

/// Removes a temporary directory unless it got its final name.
class Unfinished {
 public:
  explicit Unfinished(fs::path path) : path_(std::move(path)) {}
  ~Unfinished() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  Unfinished(const Unfinished&) = delete;
  Unfinished& operator=(const Unfinished&) = delete;
  void finished() { path_.clear(); }

 private:
  fs::path path_;
};

/// Returns the path without a slash at its end, and with a parent. Throws for a bad name.
fs::path checked_path(fs::path path) {
  if (!path.has_filename()) path = path.parent_path();
  files::require_path("checkpoint", path);
  const std::string name = path.filename().string();
  if (name.empty() || name[0] == '.')
    fail<UsageError>("checkpoint", "not a name for a checkpoint: \"", path.string(),
                     "\". Give a name that does not start with a dot.");
  return path.has_parent_path() ? path : fs::path(".") / path;
}

void require_free(bool free, const fs::path& path) {
  if (!free)
    fail<UsageError>("checkpoint", "the path exists: ", path.string(),
                     ". Use another name, or remove what is there.");
}

void write_tensors(const fs::path& path, const TensorSource& tensors) {
  try {
    stream_safetensors(path, tensors, {{"format", "pt"}});
  } catch (const FormatError& error) {
    fail<FormatError>("checkpoint", "cannot write the tensors: ", error.what());
  }
}

optim::NamedTensors read_tensors(const fs::path& path) {
  try {
    SafetensorsFile file = load_safetensors(path);
    file.require_all();
    return std::move(file.tensors);
  } catch (const Error& error) {
    fail<FormatError>("checkpoint", "cannot read the tensors: ", error.what());
  }
}

Manifest read_manifest(const fs::path& path) {
  const fs::path file = path / manifest_file;
  const Manifest manifest = parse_manifest(read_text(file, manifest_limit), file.string());
  for (std::size_t i = 0; i < listed_files.size(); ++i)
    if (const uint64_t bytes = size_of(path / listed_files[i]); bytes != manifest.files[i].bytes)
      fail<FormatError>("checkpoint", (path / listed_files[i]).string(), " has ", bytes,
                        " bytes, its manifest says ", manifest.files[i].bytes,
                        ". Use another checkpoint.");
  return manifest;
}

void verify_sum(const fs::path& file, const FileSum& expected) {
  if (sum_of(file) != expected)
    fail<FormatError>("checkpoint", "the checksum of ", file.string(),
                      " is not that of its manifest. Use another checkpoint.");
}

CheckpointState read_state(const fs::path& path, const Manifest& manifest) {
  const fs::path file = path / state_file;
  verify_sum(file, manifest.files.back());
  return parse_state(read_text(file, state_limit), file.string());
}
}  // namespace

void save_checkpoint(const fs::path& given, const Checkpoint& checkpoint) {
  save_checkpoint(given, checkpoint.state, source_of(checkpoint.tensors));
}

void save_checkpoint(const fs::path& given, const CheckpointState& at,
                     const TensorSource& tensors) {
  if (!tensors.tensor && !tensors.infos.empty())
    fail<UsageError>("checkpoint", "the source of ", tensors.infos.size(),
                     " tensors has no function `tensor`. Give it one.");
  const fs::path path = checked_path(given);
  if (at.step < 0 || at.epoch < 0 || at.batches < 0)
    fail<UsageError>("checkpoint", "step ", at.step, ", epoch ", at.epoch, ", batch ", at.batches,
                     ". Count from 0.");
  const std::string state = state_text(at);
  if (state.size() > state_limit)
    fail<UsageError>("checkpoint", "the numbers and texts need ", state.size(),
                     " bytes, the limit is ", state_limit, ". Write some of it elsewhere.");
  std::error_code ignored;
  require_free(fs::symlink_status(path, ignored).type() == fs::file_type::not_found, path);

  TensorSource model, others{.tensor = tensors.tensor};
  model.tensor = [&](const std::string& name) {
    return tensors.tensor(std::string(model_prefix) + name);
  };
  for (TensorInfo info : tensors.infos)
    if (info.name.starts_with(model_prefix)) {
      info.name = info.name.substr(model_prefix.size());
      model.infos.push_back(std::move(info));
    } else {
      others.infos.push_back(std::move(info));
    }

  const TemporaryName temporary = make_temporary(path);
  Unfinished unfinished(temporary.path);
  write_tensors(temporary.path / model_file, model);
  write_tensors(temporary.path / optimizer_file, others);
  write_durably(temporary.path / state_file, state);
  Manifest manifest;
  std::ranges::transform(listed_files, manifest.files.begin(),
                         [&](std::string_view name) { return sum_of(temporary.path / name); });
  write_durably(temporary.path / manifest_file, manifest_text(manifest));
  sync_directory(temporary.path);
  require_free(rename_to_new(temporary.path, path), path);
  unfinished.finished();
  sync_directory(path.parent_path());
}

CheckpointState read_checkpoint_state(const fs::path& path) {
  return read_state(path, read_manifest(path));
}

CheckpointState verify_checkpoint(const fs::path& path) {
  const Manifest manifest = read_manifest(path);
  CheckpointState state = read_state(path, manifest);
  for (std::size_t i = 0; i < listed_files.size(); ++i)
    verify_sum(path / listed_files[i], manifest.files[i]);
  return state;
}

Checkpoint load_checkpoint(const fs::path& path) {
  Checkpoint checkpoint{.state = verify_checkpoint(path), .tensors = {}};
  for (const auto& [name, x] : read_tensors(path / model_file))
    checkpoint.tensors[std::string(model_prefix) + name] = x;
  for (const auto& [name, x] : read_tensors(path / optimizer_file)) {
    if (name.starts_with(model_prefix))
      fail<FormatError>("checkpoint", "a tensor of the model is in ",
                        (path / optimizer_file).string(), ". Use another checkpoint.");
    checkpoint.tensors[name] = x;
  }
  return checkpoint;
}

std::string checkpoint_name(int64_t step) {
  const std::string digits = std::to_string(step);
  return "step-" + std::string(9 - std::min<std::size_t>(9, digits.size()), '0') + digits;
}

}  // namespace halftone::train
