// gradcheck: compares an operation's gradient with central differences, in f64. As
// torch.autograd.gradcheck.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <halftone/core/tensor.h>

namespace halftone {

struct GradcheckOptions {
  double step = 1e-6;
  double relative_tolerance = 1e-5, absolute_tolerance = 1e-7;
};
struct GradcheckResult {
  bool passed = true;
  double worst_error = 0;  // largest |analytic - numeric| seen
  std::string message;     // the first disagreement: input, element, both values
  explicit operator bool() const { return passed; }
};

/// Checks `function`, from the inputs to one tensor of any shape. Inputs that require gradients
/// must be f64, `function` smooth within `step` of them. Throws DTypeError for other dtypes.
GradcheckResult gradcheck(const std::function<Tensor(const std::vector<Tensor>&)>& function,
                          const std::vector<Tensor>& inputs, const GradcheckOptions& options = {});

}  // namespace halftone
