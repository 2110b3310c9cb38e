// Entries of a training's state: shared by saving and loading (training_state.cpp) and converting
// (convert_state.cpp).
#pragma once

#include <string>
#include <string_view>

#include <halftone/core/error.h>
#include <halftone/core/quoted.h>
#include <halftone/optim/optimizer.h>

namespace halftone::amp::entries {

inline constexpr std::string_view loading = "Training.load_state_dict";

inline void add(optim::NamedTensors& state, std::string_view prefix,
                const optim::NamedTensors& part) {
  for (const auto& [name, x] : part) state[std::string(prefix) + name] = x;
}

/// Returns the entries under a prefix, with the prefix removed.
inline optim::NamedTensors part_of(const optim::NamedTensors& state, std::string_view prefix) {
  optim::NamedTensors part;
  for (const auto& [name, x] : state)
    if (name.starts_with(prefix)) part[name.substr(prefix.size())] = x;
  return part;
}

/// Takes one entry out of a state.
inline Tensor take(optim::NamedTensors& state, const std::string& name) {
  const auto entry = state.extract(name);
  if (entry.empty() || !entry.mapped().defined())
    fail<UsageError>(loading, "there is no entry \"", name, "\". Load what a Training saved.");
  return entry.mapped();
}

/// Returns a text, which is stored as a tensor of its bytes.
inline std::string text_of(const optim::NamedTensors& state, const std::string& name) {
  const auto found = state.find(name);
  if (found == state.end() || !found->second.defined() || found->second.dtype() != u8)
    fail<UsageError>(loading, "there is no entry \"", name, "\". Load what a Training saved.");
  std::string text;
  for (const int64_t letter : found->second.to_vector<int64_t>()) text += char(letter);
  return text;
}

}  // namespace halftone::amp::entries
