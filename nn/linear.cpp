// Linear: allocation and first values.
#include <halftone/nn/linear.h>

#include <halftone/nn/arguments.h>
#include <halftone/nn/init.h>

namespace halftone::nn {

Linear::Linear(int64_t in_features, int64_t out_features, LinearOptions options) {
  detail::require_positive("Linear", "in_features", in_features);
  detail::require_positive("Linear", "out_features", out_features);
  weight = Parameter(Shape{out_features, in_features});
  if (options.bias) bias = Parameter(Shape{out_features});
  init::layer_default(weight, bias);
}

}  // namespace halftone::nn
