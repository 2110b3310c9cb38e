// Tensors by name: what state dictionaries and files hold.
#pragma once

#include <map>
#include <string>

#include <halftone/core/tensor.h>

namespace halftone {

using NamedTensors = std::map<std::string, Tensor>;

}  // namespace halftone
