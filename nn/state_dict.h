// A module's parameters and buffers by name, to and from .safetensors files. Names and layouts are
// PyTorch's, so files can be exchanged in both directions (`safetensors.torch.load_file`).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <halftone/core/named_tensors.h>
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
  /// Removed from the given names that begin with it: "model." (Lightning), "module." (PyTorch's
  /// DDP), "_orig_mod." (torch.compile), or several, "module._orig_mod.". Other names stay.
  std::string strip_prefix{};
};
/// The names that did not agree, which is not an error without `strict`.
struct LoadReport {
  std::vector<std::string> missing, unexpected;
};

/// Copies values into the module's tensors in place, converting dtypes and devices. Throws one
/// error that lists everything that does not fit; then nothing has changed: a ShapeError for
/// shapes, a DTypeError for values that the module's dtype cannot hold, a UsageError for names and
/// for a shared tensor with different values under its names. If the given names are the module's
/// after a prefix, the error says so.
LoadReport load_state_dict(Module& module, const NamedTensors& state, LoadOptions options = {});

void save(const Module& module, const std::filesystem::path& path);
/// Loads a .safetensors file in the same way. A tensor that no Tensor can be (see
/// SafetensorsFile::unsupported) is an UnsupportedError if the module has its name, and an
/// unexpected name otherwise.
LoadReport load(Module& module, const std::filesystem::path& path, LoadOptions options = {});

namespace detail {
/// As load(), for a file that was read. `hidden`: a prefix that the module's names have and the
/// file's names do not; errors leave it out.
LoadReport load_file(Module& module, SafetensorsFile file, const LoadOptions& options,
                     const std::filesystem::path& path, std::string_view hidden = {});
/// Removes a prefix from all names. Throws UsageError if two become equal.
void strip_prefix(SafetensorsFile& file, const std::string& prefix);
}  // namespace detail

}  // namespace halftone::nn
