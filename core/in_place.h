// Writes into tensors that others hold. An object that keeps a result made from a tensor, as
// autocast keeps its casts of weights, compares storage versions: a write that does not bump the
// version leaves a stale copy. So outside of kernels all writes go through these functions.
#pragma once

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

#include <halftone/core/backend.h>
#include <halftone/core/op_info.h>

namespace halftone {

/// Returns whether several elements of y are one number in memory, as in an expanded tensor: they
/// cannot be written one by one.
inline bool has_overlap(const Tensor& y) {
  std::array<std::pair<int64_t, int64_t>, Dims::max_rank> steps{};  // stride and size
  std::size_t count = 0;
  for (int i = 0; i < y.rank(); ++i) {
    if (y.shape()[i] == 0) return false;
    if (y.shape()[i] > 1) steps[count++] = {std::abs(y.strides()[i]), y.shape()[i]};
  }
  std::sort(steps.begin(), steps.begin() + std::ptrdiff_t(count));
  int64_t reach = 0;  // of the dimensions with smaller strides
  for (std::size_t i = 0; i < count; ++i) {
    if (steps[i].first <= reach) return true;
    reach += steps[i].first * (steps[i].second - 1);
  }
  return false;
}

/// Throws UsageError if y has such elements.
inline void require_writable(const Tensor& y) {
  if (has_overlap(y))
    fail<UsageError>(running_operation("write"), described(y), " with strides ", y.strides(),
                     " has several elements in one place, as an expanded tensor has, and cannot be "
                     "written. Write into a clone() of it.");
}

/// Announces a write through data<T>() or raw_data(): call it after the write.
inline void mark_written(const Tensor& y) {
  require_writable(y);
  y.storage()->bump_version();
}

/// Calls kernel(backend, y), which writes y by calls of the backend.
template <class Kernel> void write_in_place(Tensor y, const Kernel& kernel) {
  require_writable(y);
  kernel(backend_for(y), y);
  mark_written(y);
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
