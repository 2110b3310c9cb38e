// Destructors here only copy within memory that exists, so nothing in them can fail.
#include <halftone/train/evaluation.h>

#include <halftone/core/in_place.h>
#include <halftone/core/memory_ledger.h>

namespace halftone::train {

Evaluation::Evaluation(nn::Module& model) : random_(default_generator().state()) {
  for (const auto& [name, module] : model.named_modules())
    modes_.emplace_back(module, module->training);
  model.eval();
}

Evaluation::~Evaluation() {
  for (const auto& [module, training] : modes_) module->training = training;
  default_generator().set_state(random_);
}

}  // namespace halftone::train
