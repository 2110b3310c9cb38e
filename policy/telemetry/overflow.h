// Where did it overflow? The question that a skipped step leaves open.
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
  /// Not finite in it, of how many.
  int64_t bad = 0, elements = 0;
  /// Of magnitudes that are finite: of what it was computed or cast from, and in it.
  double largest_in = 0, largest_out = 0;
  bool cast = false;     // a cast to `dtype` made it so
  bool arrived = false;  // it came so: from the data, the weights, or out of a sum of gradients
  bool backward = false;
  double loss_scale = 1;
  /// The loss scale, halved until everything is finite; 0: no smaller one helps.
  double enough = 0;
};
/// "transformer.h.3.mlp.c_proj/linear.0, grad_input: 12 of 65,536 values are beyond f16's 65504;
/// ...", with what would do.
std::ostream& operator<<(std::ostream& out, const Overflow& overflow);

/// Runs `loss` again, forward (through training.forward()) and backward, with the random numbers
/// and the loss scale of the last pass, and looks at every tensor: call it after step() and before
/// the next forward(). Nothing for a pass without overflow. Weights, gradients, buffers, random
/// numbers and the session are afterwards as they were; histories of delayed scaling are those
/// after the step. Slow: it waits after each operation, and tries smaller scales until one fits.
std::optional<Overflow> explain_overflow(amp::Training& training,
                                         const std::function<Tensor()>& loss);

}  // namespace halftone::policy
