// The multi-layer perceptron as a Sequential.
#include <halftone/nn/models/mlp.h>

#include <halftone/core/error.h>
#include <halftone/nn/layers.h>
#include <halftone/nn/linear.h>

namespace halftone::nn::models {

Sequential mlp(const std::vector<int64_t>& sizes) {
  if (sizes.size() < 2)
    fail<UsageError>("models.mlp", sizes.size(),
                     " sizes given. Give at least an input and an output size.");
  Sequential model;
  for (std::size_t i = 0; i + 1 < sizes.size(); ++i) {
    if (i > 0) model.add(Relu());
    model.add(Linear(sizes[i], sizes[i + 1]));
  }
  return model;
}

}  // namespace halftone::nn::models
