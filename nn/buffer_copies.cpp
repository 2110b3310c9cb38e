// Copies made by clone(), restored by the kernels that write in place.
#include <halftone/nn/buffer_copies.h>

#include <halftone/autograd/ops.h>
#include <halftone/core/in_place.h>
#include <halftone/core/memory_ledger.h>

namespace halftone::nn {

BufferCopies::BufferCopies(const Module& model) {
  const MemoryScope scope(MemoryUse::workspace);
  for (const auto& [name, buffer] : model.named_buffers())
    held_.emplace_back(buffer, buffer.clone());
}

void BufferCopies::restore() const {
  for (const auto& [buffer, copy] : held_) copy_into(buffer, copy);
}

void BufferCopies::restore_where(const Tensor& flag) const {
  for (const auto& [buffer, kept] : held_) {
    const Tensor here = flag.to(buffer.device());
    const Tensor back = not_equal(here, zeros({}, f32, buffer.device()));
    write_in_place(buffer, [&, &copy = kept](Backend& backend, Tensor& x) {
      backend.select(views::expand(back, x.shape()), copy, x, x);
    });
  }
}

}  // namespace halftone::nn
