// The two JSON files of a checkpoint. Each has exactly one valid spelling: a text that does not
// print again to the same bytes is refused. So duplicate keys, unknown names, other orders and
// other forms of numbers need no rules of their own.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include <halftone/train/checkpoints/checkpoint.h>
#include <halftone/train/durable_files.h>

namespace halftone::train {

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
/// Parse a file's text. Throw FormatError, naming `path`.
Manifest parse_manifest(const std::string& text, const std::string& path);
CheckpointState parse_state(const std::string& text, const std::string& path);

}  // namespace halftone::train
