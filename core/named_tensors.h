// Tensors by name: the content of state dictionaries and files.
#pragma once

#include <map>
#include <string>

#include <halftone/core/tensor.h>

namespace halftone {

using NamedTensors = std::map<std::string, Tensor>;

}  // namespace halftone
