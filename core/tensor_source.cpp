#include <halftone/core/tensor_source.h>

namespace halftone {

TensorSource source_of(const NamedTensors& tensors) {
  TensorSource source;
  for (const auto& [name, x] : tensors) source.infos.push_back(info_of(name, x));
  source.tensor = [tensors](const std::string& name) { return tensors.at(name); };
  return source;
}

}  // namespace halftone
