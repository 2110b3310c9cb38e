// A user's program against the installed package: one training step, in ten lines.
#include <halftone/halftone.h>

int main() {
  halftone::nn::Linear model(4, 2);
  halftone::optim::AdamW optimizer(model.parameters(), {.lr = 1e-3});
  const halftone::Tensor labels = halftone::randint(0, 2, {8});
  const halftone::Tensor loss = halftone::cross_entropy(model(halftone::randn({8, 4})), labels);
  loss.backward();
  optimizer.step();
  return loss.item() > 0 ? 0 : 1;
}
