#include <halftone/train/evaluation.h>

namespace halftone::train {

Evaluation::Evaluation(nn::Module& model) : random_(default_generator().state()) {
  for (const auto& [name, module] : model.named_modules())
    modes_.emplace_back(module, module->training);
  model.eval();
}

Evaluation::~Evaluation() {  // copies within existing memory, so it cannot fail
  for (const auto& [module, training] : modes_) module->training = training;
  default_generator().set_state(random_);
}

}  // namespace halftone::train
