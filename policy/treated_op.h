// The policy's tap: treated_op.cpp applies a treatment to the tensors of one
// operation.
#pragma once

#include <memory>
#include <string>

#include <halftone/autograd/slots.h>
#include <halftone/core/formats/quantizer.h>
#include <halftone/core/op_info.h>
#include <halftone/policy/rules.h>
#include <halftone/policy/session.h>

namespace halftone::policy {

/// The tap's record of the state in which its operation began.
struct TreatedCall {
  std::shared_ptr<const Treatment> treatment;
  std::string where;  // the policy, for messages
  std::string site;   // its name
  const OpInfo* op;
  std::vector<Role> roles;               // of the inputs: input, weight or bias
  std::shared_ptr<TensorScales> scales;  // of the session
  std::shared_ptr<WeightAverages> averages;
  uint64_t seed = 0;    // of the site
  uint64_t offset = 0;  // of the pass
  int64_t step = 0;
  bool notes = true;  // histories record largest magnitudes, and averages take this step's weights
  std::shared_ptr<Observer> observer{};  // null: no observer
  std::vector<Tensor> before{};          // for the observer: the inputs without the region's casts
};
std::shared_ptr<OpTap> make_treated_op(TreatedCall call);

/// Throws UsageError: a role's grid is not exact in the dtype that would hold it.
[[noreturn]] void fail_inexact(std::string_view where, std::string_view site, Role role,
                               const Quantizer& quantizer, DType dtype);

/// Returns a random key for a tensor of a site. It depends only on (seed of the rules, site, role,
/// pass, element).
RandomKey key_of(uint64_t site_seed, uint64_t offset, Role role, std::size_t input);
uint64_t site_seed(uint64_t seed, std::string_view site);

// The view of a tensor for quantization: a matrix whose columns run along the dimension that a
// product sums over, because blocks of scales and rotations run along it.

/// Returns quantized() of that view, with shape, dtype and device of x.
Tensor quantized_along(const Tensor& x, Sums sums, const QuantizeCall& call);

}  // namespace halftone::policy
