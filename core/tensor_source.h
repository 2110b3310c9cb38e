// Tensors by name that need not all be in memory at once: a file writer asks for one at a time.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <halftone/core/named_tensors.h>

namespace halftone {

/// A tensor's description without its data.
struct TensorInfo {
  std::string name;
  DType dtype = f32;
  Shape shape{};

  int64_t bytes() const { return numel_of(shape) * size_of(dtype); }
};
inline TensorInfo info_of(const std::string& name, const Tensor& x) {
  return x.defined() ? TensorInfo{name, x.dtype(), x.shape()} : TensorInfo{name};
}

struct TensorSource {
  std::vector<TensorInfo> infos{};
  /// Returns the tensor of a name, with the dtype and shape of its info.
  std::function<Tensor(const std::string& name)> tensor{};
};

/// Returns a source whose tensors all exist; the source keeps handles.
TensorSource source_of(const NamedTensors& tensors);

}  // namespace halftone
