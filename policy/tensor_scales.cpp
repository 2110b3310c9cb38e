// One ring of magnitudes per tensor.
#include <halftone/policy/tensor_scales.h>

#include <halftone/core/backend.h>
#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/core/in_place.h>
#include <halftone/core/memory_ledger.h>

namespace halftone::policy {

TensorScales::Memory& TensorScales::memory_for(const std::string& name, const Quantizer& quantizer,
                                               Device device) {
  Memory& memory = memories_[name];
  const bool fits =
      memory.scale.defined() && memory.scale.device() == device && memory.quantizer == quantizer;
  if (fits) return memory;
  const MemoryScope scope(MemoryUse::workspace);
  memory.quantizer = quantizer;
  const int64_t steps = quantizer.scaling.history;
  const auto make = [&](const char* kind, const Shape& shape, DType dtype, double value) {
    const auto saved = waiting_.find(std::string(kind) + '.' + name);
    if (saved != waiting_.end() && saved->second.shape() == shape && saved->second.dtype() == dtype)
      return saved->second.to(device).clone();
    return full(shape, value, dtype, device);
  };
  memory.amax = make("amax", {1}, f32, 0);
  memory.history = make("history", {1, steps}, f32, 0);
  memory.position = make("position", {1}, i64, 0);
  memory.scale = make("scale", {1}, f32, 1);
  return memory;
}

Tensor TensorScales::scale_for(const std::string& name, const Quantizer& quantizer, const Tensor& x,
                               bool notes) {
  Memory& memory = memory_for(name, quantizer, x.device());
  if (notes && x.numel() > 0) {
    const Tensor rows = x.is_contiguous() ? x.view_as({x.numel()}, {1}, x.offset()) : x;
    Tensor amax = memory.amax.view_as({}, {}, 0);
    backend_for(x).largest_magnitude(rows, amax);
  }
  return memory.scale.view_as({}, {}, 0);
}

void TensorScales::end_step() {
  for (auto& [name, memory] : memories_)
    backend_for(memory.scale)
        .next_scales(memory.quantizer, memory.amax, memory.history, memory.position, memory.scale);
}

void TensorScales::add_to(NamedTensors& state) const {
  state.insert(waiting_.begin(), waiting_.end());
  for (const auto& [name, memory] : memories_) {
    state["amax." + name] = memory.amax, state["history." + name] = memory.history;
    state["position." + name] = memory.position, state["scale." + name] = memory.scale;
  }
}

void TensorScales::load(const NamedTensors& state) {
  memories_.clear(), waiting_.clear();
  for (const auto& [name, x] : state)
    for (const char* kind : {"amax.", "history.", "position.", "scale."})
      if (name.starts_with(kind)) waiting_[name] = x.clone();
}

}  // namespace halftone::policy
