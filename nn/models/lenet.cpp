// The network, as a module with named parts.
#include <halftone/nn/models/lenet.h>

namespace halftone::nn::models {

LeNet::LeNet(LeNetOptions options)
    : conv1(options.channels, 32, 3, {.padding = 1}),
      conv2(32, 64, 3, {.padding = 1}),
      linear1(64 * 7 * 7, 128),
      linear2(128, options.classes) {}

Tensor LeNet::forward(const Tensor& x) const {
  Tensor y = max_pool2d(relu(conv1(x)), {.kernel = 2});  // [n, 32, 14, 14]
  y = max_pool2d(relu(conv2(y)), {.kernel = 2});         // [n, 64, 7, 7]
  return linear2(relu(linear1(flatten(y, 1))));
}

void LeNet::describe(Fields& field) {
  field("conv1", conv1), field("conv2", conv2);
  field("linear1", linear1), field("linear2", linear2);
}

}  // namespace halftone::nn::models
