// Tensors by name that need not all be there at once: what a writer of files asks for one by one.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <halftone/core/named_tensors.h>

namespace halftone {

/// What a tensor is without its data.
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
  /// The tensor of a name, of the dtype and shape that its info says.
  std::function<Tensor(const std::string& name)> tensor{};
};

/// All of them are there; the source keeps handles.
TensorSource source_of(const NamedTensors& tensors);

}  // namespace halftone
