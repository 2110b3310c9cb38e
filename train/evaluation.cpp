// Destructors here only copy within memory that exists, so nothing in them can fail.
#include <halftone/train/evaluation.h>

#include <halftone/core/backend.h>
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

HeldBuffers::HeldBuffers(const nn::Module& model) {
  const MemoryScope scope(MemoryUse::workspace);
  for (const auto& [name, buffer] : model.named_buffers())
    held_.emplace_back(buffer, buffer.clone());
}

HeldBuffers::~HeldBuffers() {
  for (auto& [buffer, copy] : held_) {
    backend_for(buffer).copy(copy, buffer);
    buffer.storage()->bump_version();
  }
}

}  // namespace halftone::train
