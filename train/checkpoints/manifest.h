// The two JSON files of a checkpoint. Both have one spelling: what does not print again to the very
// same bytes is refused, so duplicate keys, unknown names, other orders and other numbers need no
// rule of their own.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include <halftone/train/checkpoints/checkpoint.h>
#include <halftone/train/checkpoints/durable_files.h>

namespace halftone::train {

inline constexpr std::string_view model_file = "model.safetensors",
                                  optimizer_file = "optimizer.safetensors",
                                  state_file = "state.json", manifest_file = "manifest.json";
/// What a manifest lists: exactly these, in this order.
inline constexpr std::array listed_files{model_file, optimizer_file, state_file};
inline constexpr uint64_t manifest_limit = uint64_t(1) << 12, state_limit = uint64_t(1) << 24;

struct Manifest {
  std::array<FileSum, listed_files.size()> files;
};

std::string manifest_text(const Manifest& manifest);
std::string state_text(const CheckpointState& state);
/// Throw FormatError, naming `path`.
Manifest parse_manifest(const std::string& text, const std::string& path);
CheckpointState parse_state(const std::string& text, const std::string& path);

}  // namespace halftone::train
