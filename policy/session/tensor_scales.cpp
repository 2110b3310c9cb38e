// One ring of magnitudes per tensor.
#include <halftone/policy/session/tensor_scales.h>

#include <halftone/core/backend.h>
#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/core/memory.h>

namespace halftone::policy {

TensorScales::Memory& TensorScales::memory_for(const std::string& name, const Quantizer& quantizer,
                                               Device device) {
  Memory& memory = memories_[name];
  if (memory.scale.defined() && memory.quantizer == quantizer) {
    if (memory.scale.device() != device)
      for (Tensor* x : {&memory.amax, &memory.history, &memory.position, &memory.scale})
        *x = x->to(device);
    return memory;
  }
  const MemoryScope scope(MemoryUse::workspace);
  memory.quantizer = quantizer;
  const int64_t steps = quantizer.scaling.history;
  const auto make = [&](const char* kind, const Shape& shape, DType dtype, double value) {
    // A loaded entry is used once: with another quantizer it would be outdated later.
    const auto saved = waiting_.extract(std::string(kind) + '.' + name);
    if (saved && saved.mapped().shape() == shape && saved.mapped().dtype() == dtype)
      return saved.mapped().to(device).clone();
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
    memory.noted = true;
  }
  return memory.scale.view_as({}, {}, 0);
}

std::vector<TensorScales::Noted> TensorScales::noted() const {
  std::vector<Noted> all;
  for (const auto& [name, memory] : memories_)
    if (memory.noted) all.push_back({name, memory.quantizer, float(memory.amax.item())});
  return all;
}

void TensorScales::note(const Noted& seen) {
  const auto known = memories_.find(seen.name);
  const bool here = known != memories_.end() && known->second.scale.defined();
  Memory& memory =
      memory_for(seen.name, seen.quantizer, here ? known->second.scale.device() : Device::cpu());
  if (magnitude_bits(seen.amax) > magnitude_bits(float(memory.amax.item())))
    fill_with(memory.amax, double(seen.amax));
  memory.noted = true;
}

void TensorScales::end_step() {
  for (auto& [name, memory] : memories_)
    if (std::exchange(memory.noted, false))
      backend_for(memory.scale)
          .next_scales(memory.quantizer, memory.amax, memory.history, memory.position,
                       memory.scale);
}

void TensorScales::add_to(NamedTensors& state) const {
  state.insert(waiting_.begin(), waiting_.end());
  for (const auto& [name, memory] : memories_) {
    state["amax." + name] = memory.amax, state["history." + name] = memory.history;
    state["position." + name] = memory.position, state["scale." + name] = memory.scale;
  }
}

void TensorScales::load(const NamedTensors& state) {
  NamedTensors loaded;
  for (const auto& [name, x] : state) {
    const bool position = name.starts_with("position.");
    if (!position && !name.starts_with("amax.") && !name.starts_with("history.") &&
        !name.starts_with("scale."))
      continue;
    // A position is an index into memory.
    if (!x.defined() || x.dtype() != (position ? i64 : f32) ||
        (position && (x.numel() != 1 || x.item() < 0 || x.item() > 0x1p53)))
      fail<UsageError>("policy.load_state_dict", "the entry ", in_quotes(name), " is ",
                       described(x), position ? ", which is not a count of steps" : "",
                       ". Load a state that was saved under this policy.");
    loaded[name] = x.clone();
  }
  memories_.clear(), waiting_ = std::move(loaded);
}

}  // namespace halftone::policy
