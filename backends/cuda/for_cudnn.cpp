// Attention on lengths that are rounded up.
#include <halftone/backends/cuda/for_cudnn.h>

#include <atomic>
#include <map>
#include <mutex>

#include <halftone/core/backend.h>
#include <halftone/core/factory.h>
#include <halftone/core/tensor.h>

namespace halftone::cuda {

namespace {
/// Returns x with `dim` extended to `length`, filled with zeros.
Tensor lengthened(const Context& context, const Tensor& x, int dim, int64_t length) {
  Shape shape = x.shape();
  const int64_t before = std::exchange(shape[dim], length);
  Tensor longer = scratch(context, shape, x.dtype());
  Backend& backend = backend_for(longer);
  backend.fill(0, longer);
  Tensor head = views::slice(longer, dim, 0, before);
  backend.copy(x, head);
  return longer;
}
/// Returns an uninitialized tensor of x's shape with `dim` extended to `length`.
Tensor room_for(const Context& context, const Tensor& x, int dim, int64_t length) {
  Shape shape = x.shape();
  shape[dim] = length;
  return scratch(context, shape, x.dtype());
}
}  // namespace

bool attention_lengthened(const Context& context, const Tensor& q, const Tensor& k, const Tensor& v,
                          Tensor& y, Tensor& log_sum_exp, const RunLengthened& call) {
  const int64_t l = q.shape()[2];
  const int64_t length = (l + attention_step - 1) / attention_step * attention_step;
  Tensor longer_y = room_for(context, y, 2, length);
  Tensor longer_sums = room_for(context, log_sum_exp, 3, length);
  if (!call(lengthened(context, q, 2, length), lengthened(context, k, 2, length),
            lengthened(context, v, 2, length), longer_y, longer_sums))
    return false;
  backend_for(y).copy(views::slice(longer_y, 2, 0, l), y);
  backend_for(y).copy(views::slice(longer_sums, 3, 0, l), log_sum_exp);
  return true;
}

// Copies of weights, by the address of the weight's memory.

namespace {

struct Permuted {
  uint64_t version;
  int64_t offset;
  Strides strides;
  Tensor result;

  bool is_of(const Tensor& w) const {
    return version == w.storage()->version() && offset == w.offset() && strides == w.strides() &&
           result.shape() == w.shape() && result.dtype() == w.dtype();
  }
};

struct Kept {
  std::mutex mutex;
  std::map<std::pair<const void*, bool>, Permuted> copies;  // by address, and whether recorded
  std::atomic<std::size_t> count{0};  // a quick check, because most releases of memory concern
                                      // other tensors
};
/// Never destroyed: tensors with static lifetime release their memory at the end of the program.
Kept& kept() {
  static auto* const instance = new Kept;
  return *instance;
}

/// Removes copies for which remove(key) is true. They are released after the lock.
template <class Remove> void forget(const Remove& remove) noexcept {
  Kept& all = kept();
  decltype(all.copies) gone;
  const std::lock_guard lock(all.mutex);
  for (auto copy = all.copies.begin(); copy != all.copies.end();) {
    const auto next = std::next(copy);
    if (remove(copy->first, copy->second)) gone.insert(all.copies.extract(copy));
    copy = next;
  }
  all.count = all.copies.size();
}

Tensor permuted(const Tensor& w) {
  const MemoryScope scope(MemoryUse::workspace);
  Tensor y = empty_channels_last(w.shape(), w.dtype(), w.device());
  backend_for(w).copy(w, y);
  return y;
}

}  // namespace

Tensor channels_last_weight(const Context& context, const Tensor& w) {
  if (w.is_channels_last()) return w;
  const MemoryUse use = w.storage()->use();
  if (use != MemoryUse::parameter && use != MemoryUse::cast_cache) return permuted(w);
  Kept& all = kept();
  const std::pair<const void*, bool> key{w.storage()->data(), context.capturing()};
  {
    const std::lock_guard lock(all.mutex);
    const auto found = all.copies.find(key);
    if (found != all.copies.end() && found->second.is_of(w)) return found->second.result;
  }
  forget([&](const auto& other, const Permuted&) { return other == key; });
  const Tensor result = permuted(w);
  Permuted made{w.storage()->version(), w.offset(), w.strides(), result};
  const std::lock_guard lock(all.mutex);
  std::swap(all.copies[key], made);  // the old copy is released after the lock
  all.count = all.copies.size();
  return result;
}

void forget_weight(const void* data) noexcept {
  if (kept().count.load(std::memory_order_relaxed) == 0) return;
  forget([&](const auto& key, const Permuted&) { return key.first == data; });
}

void forget_recorded_weights(const Context& context) noexcept {
  forget([&](const auto& key, const Permuted& copy) {
    return key.second && copy.result.device() == context.device();
  });
}

}  // namespace halftone::cuda
