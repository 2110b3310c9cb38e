// Trains a linear layer for one step and rounds a tensor: enough to show that the package links.
#include <iostream>

#include <halftone/halftone.h>
namespace ht = halftone;

int main() {
  ht::manual_seed(0);
  ht::nn::Linear layer(4, 2);
  ht::optim::Sgd sgd(layer.parameters(), {.lr = 0.1});
  const ht::Tensor x = ht::randn({8, 4});
  const auto loss = [&] { return ht::square(layer(x)).mean(); };
  const double before = loss().item();
  loss().backward();
  sgd.step();
  const double after = loss().item();
  std::cout << "loss " << before << ", then " << after << '\n' << ht::quantize(x, "e4m3");
  return after < before ? 0 : 1;
}
