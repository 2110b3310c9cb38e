// Writes into tensors that others hold. An object that keeps a result made from a tensor, as
// autocast keeps its casts of weights, compares storage versions: a write that does not bump the
// version leaves a stale copy. So outside of kernels all writes go through these functions.
#pragma once

#include <halftone/core/backend.h>
#include <halftone/core/op_info.h>

namespace halftone {

/// Returns whether several elements of y are one number in memory, as in an expanded tensor: they
/// cannot be written one by one.
bool has_overlap(const Tensor& y);
/// Throws UsageError if y has such elements.
void require_writable(const Tensor& y);

/// Announces a write through data<T>() or raw_data(): call it after the write.
inline void mark_written(const Tensor& y) {
  require_writable(y);
  y.storage()->bump_version();
}

/// Calls kernel(backend, y), which writes y by calls of the backend.
template <class Kernel> void write_in_place(Tensor y, const Kernel& kernel) {
  require_writable(y);
  kernel(backend_for(y), y);
  y.storage()->bump_version();
}

/// y = x in y's dtype; x may be on another device. As torch's y.copy_(x), for equal shapes only.
inline void copy_into(const Tensor& y, const Tensor& x) {
  if (y.shape() != x.shape())
    fail<ShapeError>(running_operation("copy_into"), described(x), " does not fill ", described(y),
                     ". Shapes must be equal.");
  write_in_place(y, [&](Backend& backend, Tensor& to) { backend.copy(x.to(to.device()), to); });
}

/// Sets every element to value. As torch's y.fill_(value).
inline void fill_with(const Tensor& y, Number value) {
  write_in_place(y, [&](Backend& backend, Tensor& to) { backend.fill(value, to); });
}

}  // namespace halftone
