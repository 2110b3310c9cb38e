// Checkpoints of a few tensors, and operations of tests on them.
#pragma once

#include <cmath>
#include <filesystem>
#include <set>
#include <string>

#include <halftone/core/factory.h>
#include <halftone/train/checkpoints.h>

#include "../support.h"

namespace halftone::test {

namespace fs = std::filesystem;

inline train::Checkpoint small_checkpoint(int64_t step) {
  const double x = double(step);
  return {.state = {.step = step,
                    .epoch = 3,
                    .batches = 17,
                    .numbers = {{"loss", 1 / (x + 3)}, {"best \"so\" far", -0.0}},
                    .texts = {{"strategy", "fp32"}, {"note", "line\nü"}}},
          .tensors = {{"model.weight", from_vector<double>({x, 1.0, 2.0, 3.0}, {2, 2}, f32)},
                      {"model.bias", from_vector<double>({x, -x}, {2}, bf16)},
                      {"optimizer.step", from_vector<double>({x}, {1}, f64)},
                      {"generator", from_vector<double>({1.0, 2.0}, {2}, i64)}}};
}

inline bool same(const train::Checkpoint& a, const train::Checkpoint& b) {
  if (a.state.step != b.state.step || a.state.epoch != b.state.epoch ||
      a.state.batches != b.state.batches || a.state.texts != b.state.texts ||
      a.state.numbers != b.state.numbers || a.tensors.size() != b.tensors.size())
    return false;
  for (const auto& [name, x] : a.tensors) {
    const auto other = b.tensors.find(name);
    if (other == b.tensors.end() || other->second.dtype() != x.dtype() ||
        other->second.shape() != x.shape() ||
        other->second.to_vector<double>() != x.to_vector<double>())
      return false;
  }
  return true;
}

/// Names directly in a directory.
inline std::set<std::string> names_in(const fs::path& directory) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory))
    names.insert(entry.path().filename().string());
  return names;
}

/// Returns the message of load_checkpoint(); it must be a FormatError of this format, or nothing.
inline std::string refusal(const fs::path& path) {
  const std::string message = message_of<FormatError>([&] { train::load_checkpoint(path); });
  return message.empty() || message.starts_with("[checkpoint] ") ? message : "NOT OURS: " + message;
}

}  // namespace halftone::test
