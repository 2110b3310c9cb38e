// Finds the tensor that overflowed and caused a skipped step.
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>

#include <halftone/amp/training.h>
#include <halftone/policy/rules/site.h>

namespace halftone::policy {

/// The first tensor, in the order of computation, that is not finite.
struct Overflow {
  std::string site;  // "" for the loss itself, times its scale
  std::string op;    // "linear"
  Role role = Role::output;
  DType dtype = f32;
  /// The number of elements that are not finite, and of all.
  int64_t bad = 0, elements = 0;
  /// The largest finite magnitudes of the source (of a computation or cast), and of the tensor.
  double largest_in = 0, largest_out = 0;
  bool cast = false;     // a cast to `dtype` caused it
  bool arrived = false;  // the inputs had it: data, weights, or a sum of gradients
  bool backward = false;
  double loss_scale = 1;
  /// The loss scale, halved until everything is finite; 0: no smaller one helps.
  double enough = 0;
};
/// Prints "transformer.h.3.mlp.c_proj/linear.0, grad_input: 12 of 65,536 values are beyond f16's
/// 65504; ...", and a remedy.
std::ostream& operator<<(std::ostream& out, const Overflow& overflow);

/// Runs `loss` again, forward (through training.forward()) and backward, with the random numbers
/// and the loss scale of the last pass, and checks every tensor. Call it after step() and before
/// the next forward(). Returns nothing for a pass without overflow. Weights, gradients, buffers,
/// random numbers and the session are unchanged afterwards; histories of delayed scaling are those
/// after the step. Slow: it waits after each operation, and tries smaller scales until one fits.
std::optional<Overflow> explain_overflow(amp::Training& training,
                                         const std::function<Tensor()>& loss);

}  // namespace halftone::policy
