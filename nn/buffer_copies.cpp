// Copies made by clone(), restored by the kernels that write in place.
#include <halftone/nn/buffer_copies.h>

#include <algorithm>
#include <cstring>

#include <halftone/autograd/ops.h>
#include <halftone/core/backend.h>
#include <halftone/core/memory.h>

namespace halftone::nn {

BufferCopies::BufferCopies(const Module& model) {
  const MemoryScope scope(MemoryUse::workspace);
  for (const auto& [name, buffer] : model.named_buffers())
    held_.push_back({name, buffer, buffer.clone(), buffer.storage()->version()});
}

/// A write through a pointer is found by its bytes, without waiting for a GPU.
bool BufferCopies::Held::changed() const {
  if (buffer.storage()->version() != version) return true;
  if (buffer.device().kind != DeviceKind::cpu || !buffer.is_contiguous()) return false;
  return std::memcmp(buffer.raw_data(), copy.raw_data(), std::size_t(copy.bytes())) != 0;
}

void BufferCopies::restore() const {
  for (const Held& held : held_) copy_into(held.buffer, held.copy);
}

bool BufferCopies::keep_changed() {
  std::erase_if(held_, [](const Held& held) { return !held.changed(); });
  return !held_.empty();
}

std::string BufferCopies::first_changed() const {
  const auto found = std::ranges::find_if(held_, &Held::changed);
  return found == held_.end() ? "" : found->name;
}

std::shared_ptr<HeldBuffers> BufferCopies::now() const {
  const MemoryScope scope(MemoryUse::workspace);
  auto result = std::make_shared<BufferCopies>();
  for (const Held& held : held_)
    result->held_.push_back(
        {held.name, held.buffer, held.buffer.clone(), held.buffer.storage()->version()});
  return result;
}

std::shared_ptr<HeldBuffers> Module::held_buffers(const void* module) {
  return std::make_shared<BufferCopies>(*static_cast<const Module*>(module));
}

void BufferCopies::restore_where(const Tensor& flag) const {
  for (const Held& held : held_) {
    const Tensor here = flag.to(held.buffer.device());
    const Tensor back = not_equal(here, zeros({}, f32, held.buffer.device()));
    write_in_place(held.buffer, [&](Backend& backend, Tensor& x) {
      backend.select(views::expand(back, x.shape()), held.copy, x, x);
    });
  }
}

}  // namespace halftone::nn
