// Checkpoints. An input without 0xff is a text for both parsers: printing what they accept gives
// the same text. With 0xff it has four parts, manifest (empty: one that fits), state, model and
// optimizer. As a directory they are accepted exactly if the manifest is that of these files and
// each file is valid by itself. Saving it again changes nothing, and a change of one byte is found.
#include "fuzz.h"

#include <algorithm>
#include <array>

#include <zlib.h>

#include <halftone/core/named_tensors.h>
#include <halftone/train/checkpoint.h>

namespace halftone::fuzz {

// Checksums are computed through a buffer of the size of the file.
const Limits limits{.longest_input = 4096, .allocation_mib = 1, .resident_mib = 256};

namespace {
namespace fs = std::filesystem;
using train::Checkpoint, train::CheckpointState, train::Manifest;

std::optional<CheckpointState> parsed_state(const std::string& text) {
  return accepted<FormatError>("checkpoint", [&] { return train::parse_state(text, "x"); });
}

void check_texts(const std::string& text) {
  if (const auto manifest =
          accepted<FormatError>("checkpoint", [&] { return train::parse_manifest(text, "x"); }))
    require(train::manifest_text(*manifest) == text, "a manifest has one spelling");
  if (const auto state = parsed_state(text)) {
    require(train::state_text(*state) == text, "a state has one spelling");
    require(state->step >= 0 && state->epoch >= 0 && state->batches >= 0, "counts start at 0");
  }
}

uint32_t sum_of(std::string_view bytes) {
  return uint32_t(crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

/// Returns the manifest of files with these bytes, in the order of listed_files.
std::string true_manifest(const std::array<std::string_view, 3>& files) {
  Manifest manifest;
  std::ranges::transform(files, manifest.files.begin(), [](std::string_view bytes) {
    return train::FileSum{.bytes = bytes.size(), .crc32 = sum_of(bytes)};
  });
  return train::manifest_text(manifest);
}

/// Returns whether both files of tensors are valid, and every name is in the right one.
bool tensors_are_valid(const fs::path& path) {
  const auto load = [&](std::string_view name) {
    return accepted<FormatError, UnsupportedError>("load_safetensors", [&] {
      SafetensorsFile file = load_safetensors(path / name);
      file.require_all();
      return file;
    });
  };
  const auto model = load(train::model_file), others = load(train::optimizer_file);
  return model && others && std::ranges::none_of(others->tensors, [](const auto& item) {
           return item.first.starts_with("model.");
         });
}

void require_same(const Checkpoint& a, const Checkpoint& b) {
  require(train::state_text(a.state) == train::state_text(b.state), "saving keeps the state");
  require(std::ranges::equal(a.tensors, b.tensors,
                             [](const auto& x, const auto& y) {
                               return x.first == y.first && same(x.second, y.second);
                             }),
          "saving keeps the tensors");
}

std::optional<CheckpointState> verified(const fs::path& path) {
  return accepted<FormatError>("checkpoint", [&] { return train::verify_checkpoint(path); });
}

void check_change_of_one_byte(const fs::path& path, std::size_t seed) {
  const fs::path file = path / train::listed_files[seed % train::listed_files.size()];
  std::string bytes = read_file(file);
  if (bytes.empty()) return;
  bytes[seed % bytes.size()] = char(bytes[seed % bytes.size()] ^ (1 << seed % 8));
  write_file(file, bytes);
  require(!verified(path), "a changed byte is noticed");
}

void check_directory(const std::vector<std::string>& parts) {
  const fs::path path = scratch_directory() / "step-1", copy = scratch_directory() / "step-2";
  fs::create_directory(path);
  write_file(path / train::state_file, parts[1]);
  write_file(path / train::model_file, parts[2]);
  write_file(path / train::optimizer_file, parts[3]);
  const std::string fitting = true_manifest({parts[2], parts[3], parts[1]});
  const std::string& manifest = parts[0].empty() ? fitting : parts[0];
  write_file(path / train::manifest_file, manifest);

  const std::optional<CheckpointState> state = parsed_state(parts[1]);
  const bool valid = manifest == fitting && state;
  const auto loaded =
      accepted<FormatError>("checkpoint", [&] { return train::load_checkpoint(path); });
  require(loaded.has_value() == (valid && tensors_are_valid(path)),
          "a checkpoint is loaded if its manifest is true, and its state and tensors are valid");
  require(loaded || verified(path).has_value() == valid,  // loading verifies
          "a checkpoint is verified if its manifest is true and its state is valid");
  const auto looked_at =
      accepted<FormatError>("checkpoint", [&] { return train::read_checkpoint_state(path); });
  require(looked_at || !valid, "a valid checkpoint has a state to look at");
  if (loaded) {
    require(train::state_text(loaded->state) == parts[1], "the state is the file's");
    fs::remove_all(copy);
    train::save_checkpoint(copy, *loaded);
    require_same(train::load_checkpoint(copy), *loaded);
  }
  if (valid) check_change_of_one_byte(path, sum_of(parts[1]));
}
}  // namespace

void check(std::string_view bytes) {
  if (bytes.find('\xff') == std::string_view::npos) return check_texts(std::string(bytes));
  const std::vector<std::string> parts = parts_of(bytes, 4);
  // A directory costs as much as fifty texts, so one input in eight becomes a directory.
  if (sum_of(bytes) % 8 == 0) return check_directory(parts);
  check_texts(parts[0]);
  check_texts(parts[1]);
}

}  // namespace halftone::fuzz
