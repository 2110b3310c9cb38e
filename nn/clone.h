// A second module with the values of a first: copy.deepcopy(module) in PyTorch. Modules do not copy
// (a copy would share its parameters), so the clone is constructed anew, from the arguments of the
// original, and then filled.
#pragma once

#include <concepts>
#include <utility>

#include <halftone/core/random.h>
#include <halftone/nn/module.h>

namespace halftone::nn {

namespace detail {
/// Gives `copy` the values, dtypes, devices, ties, frozen parameters and modes of `source`. Throws
/// UsageError if they do not describe the same fields.
void copy_module(Module& source, Module& copy);
}  // namespace detail

/// Returns M(arguments...) with the values of `source`: parameters and buffers are copies of the
/// same dtype and device. Tied and frozen parameters stay tied and frozen, and submodules keep
/// their modes. Gradients are not copied, and the default generator does not advance. Throws
/// UsageError if the arguments make a module of other names or shapes.
///   nn::Linear copy = nn::clone(layer, 784, 10);
///   nn::models::LeNet teacher = nn::clone(lenet);
template <std::derived_from<Module> M, class... Arguments>
M clone(M& source, Arguments&&... arguments) {
  const RandomKey before = default_generator().state();
  M copy(std::forward<Arguments>(arguments)...);
  default_generator().set_state(before);
  detail::copy_module(source, copy);
  return copy;
}

}  // namespace halftone::nn
