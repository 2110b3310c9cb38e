// A small convolutional network for 28 x 28 images, after LeCun et al. 1998 with today's ReLU and
// max pooling: two convolutions, two linear layers, 421,642 parameters for one channel and ten
// classes. The workload `lenet`.
#pragma once

#include <halftone/nn/conv.h>
#include <halftone/nn/linear.h>

namespace halftone::nn::models {

struct LeNetOptions {
  int64_t channels = 1, classes = 10;
};

struct LeNet final : Layer {
  Conv2d conv1, conv2;
  Linear linear1, linear2;
  explicit LeNet(LeNetOptions options = {});
  /// x: [n, channels, 28, 28]; the result: logits [n, classes].
  Tensor forward(const Tensor& x) const override;
  void describe(Fields& field) override;
};

}  // namespace halftone::nn::models
