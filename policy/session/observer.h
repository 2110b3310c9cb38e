// An observer of the tensors of a pass, which changes none: probes, the search for an overflow,
// comparisons. A session reports every operation, in the order of computation, forward and
// backward. It passes the tensors themselves, so the host waits only if the observer does.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include <halftone/autograd/slots.h>
#include <halftone/core/formats/quantizer.h>
#include <halftone/policy/rules/site.h>

namespace halftone::policy {

/// Identifies a tensor.
struct Seen {
  const std::string& site;  // "transformer.h.0.attn.c_attn/linear.0"
  std::string_view op;
  Role role;
  std::size_t input;           // its number among the operation's inputs; otherwise 0
  const Quantizer* quantizer;  // the quantizer that a rule gives it; null: none
};

class Observer {
 public:
  virtual ~Observer() = default;
  /// A pass with gradients begins, after `step` steps. Returns whether to report it.
  virtual bool begin_pass(int64_t step) = 0;
  /// Returns the row that a quantizer's survey is added to; undefined: none.
  virtual Tensor row_for(const Seen&, Device) { return {}; }
  /// Reports the factor of a scale that follows from earlier steps, an f32 scalar.
  virtual void scale_used(const Seen&, const Tensor& /*scale*/) {}
  /// Reports a tensor before and after its treatment, which is the region's cast or a quantizer.
  /// The operation or its successor gets `after`. They are one tensor without a treatment.
  virtual void tensor(const Seen&, const Tensor& /*before*/, const Tensor& /*after*/) {}
  /// Reports that an operation ran: its inputs before casts, a way to run it again, and its result
  /// before the result's own rounding.
  virtual void ran(std::string_view /*site*/, std::span<const Tensor> /*inputs*/, Computation&,
                   const Tensor& /*y*/) {}
  /// Reports that a step of the optimizer has ended, skipped or not.
  virtual void end_step() {}
  /// Reports that an operation was differentiated: its incoming gradient, and those of its inputs.
  virtual void differentiated(std::string_view /*site*/, const Tensor& /*dy*/,
                              std::span<const Tensor> /*gradients*/) {}
};

}  // namespace halftone::policy
