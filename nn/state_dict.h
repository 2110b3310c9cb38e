// A module's parameters and buffers by name, to and from .safetensors files. Names and layouts are
// PyTorch's, so files can be exchanged in both directions (`safetensors.torch.load_file`).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <halftone/core/safetensors.h>
#include <halftone/nn/module.h>

namespace halftone::nn {

using halftone::load_safetensors;
using halftone::NamedTensors;
using halftone::SafetensorsFile;
using halftone::save_safetensors;

/// Returns handles to the data, without history: later writes to the module change them. A shared
/// tensor appears under each of its names.
NamedTensors state_dict(const Module& module);

struct LoadOptions {
  bool strict = true;  // names must agree; shapes must in any case
};
/// The names that did not agree, which is not an error without `strict`.
struct LoadReport {
  std::vector<std::string> missing, unexpected;
};

/// Copies values into the module's tensors in place, converting dtypes and devices. Throws one
/// error that lists everything that does not fit; then nothing has changed: a ShapeError for
/// shapes, a DTypeError for values that the module's dtype cannot hold, a UsageError for names and
/// for a shared tensor with different values under its names.
LoadReport load_state_dict(Module& module, const NamedTensors& state, LoadOptions options = {});

void save(const Module& module, const std::filesystem::path& path);
LoadReport load(Module& module, const std::filesystem::path& path, LoadOptions options = {});

}  // namespace halftone::nn
