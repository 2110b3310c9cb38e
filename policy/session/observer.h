// Who looks at the tensors of a pass without changing any: probes, the search for an overflow,
// comparisons. A session tells it of every operation, in the order of computation, forward and
// backward; what it is shown are the tensors themselves, so nobody waits unless it does.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include <halftone/autograd/op_tap.h>
#include <halftone/core/quantizer.h>
#include <halftone/policy/rules/site.h>

namespace halftone::policy {

/// Which tensor it is.
struct Seen {
  const std::string& site;  // "transformer.h.0.attn.c_attn/linear.0"
  std::string_view op;
  Role role;
  std::size_t input;           // its number among the operation's inputs; 0 of others
  const Quantizer* quantizer;  // what a rule puts it through; null: nothing
};

class Observer {
 public:
  virtual ~Observer() = default;
  /// A pass with gradients begins, after so many steps. Whether to tell of it.
  virtual bool begin_pass(int64_t step) = 0;
  /// The row that a quantizer's survey is added to; undefined: none.
  virtual Tensor row_for(const Seen&, Device) { return {}; }
  /// The factor of a scale that follows from earlier steps, an f32 scalar.
  virtual void scale_used(const Seen&, const Tensor& /*scale*/) {}
  /// A tensor as it came, and as the operation, or who is next, gets it: after the region's cast or
  /// a quantizer. They are one where nothing happened.
  virtual void tensor(const Seen&, const Tensor& /*before*/, const Tensor& /*after*/) {}
  /// An operation ran: the inputs as they came (before casts), in which way it could run again, and
  /// what it gave, before its own rounding.
  virtual void ran(std::string_view /*site*/, std::span<const Tensor> /*inputs*/, Computation&,
                   const Tensor& /*y*/) {}
  /// A step of the optimizer is over, skipped or not.
  virtual void end_step() {}
  /// An operation was differentiated: the gradient as it came, and those of its inputs.
  virtual void differentiated(std::string_view /*site*/, const Tensor& /*dy*/,
                              std::span<const Tensor> /*gradients*/) {}
};

}  // namespace halftone::policy
