// The sums of strategy_bytes.h: shapes times the sizes of what each strategy keeps.
#include <halftone/amp/strategy_bytes.h>

#include <set>

#include <halftone/nn/norm.h>

namespace halftone::amp {

namespace {
using Bodies = std::set<const TensorBody*>;

Bodies batch_norm_parameters(nn::Module& model) {
  Bodies bodies;
  for (const auto& [name, module] : model.named_modules())
    if (dynamic_cast<const nn::BatchNorm*>(module))
      for (const Tensor& x : module->parameters()) bodies.insert(x.body().get());
  return bodies;
}

/// Bytes that a form keeps beside an element of a short parameter.
int64_t beside(WeightForm form, DType parameter) {
  const WeightFormFacts& kept = facts(form);
  return kept.has_companion() ? size_of(kept.companion_dtype(parameter)) : 0;
}
}  // namespace

StrategyBytes predicted_bytes(const Strategy& strategy, nn::Module& model,
                              optim::Optimizer& optimizer) {
  const Bodies kept = strategy.keep_batch_norm ? batch_norm_parameters(model) : Bodies{};
  const auto dtype_of = [&](const Tensor& x) {
    return kept.contains(x.body().get()) ? f32 : strategy.weights;
  };
  StrategyBytes bytes;
  for (const Tensor& x : model.parameters()) bytes.parameter += x.numel() * size_of(dtype_of(x));
  const int64_t state_size = size_of(strategy.state_dtype.value_or(f32));
  for (int group = 0; group < optimizer.group_count(); ++group)
    for (const Tensor& x : optimizer.group_parameters(group)) {
      if (dtype_of(x) == bf16 || dtype_of(x) == f16)
        bytes.beside += x.numel() * beside(strategy.form, dtype_of(x));
      if (!x.requires_grad()) continue;
      bytes.gradient += x.numel() * size_of(dtype_of(x));
      bytes.optimizer_state += x.numel() * state_size * optimizer.state_tensors(group, x);
    }
  return bytes;
}

}  // namespace halftone::amp
