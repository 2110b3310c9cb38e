// Copies of weights, by the address of the weight's memory.
#include <atomic>
#include <map>
#include <mutex>

#include <halftone/backends/cuda/conv_weights.h>
#include <halftone/core/backend.h>
#include <halftone/core/factory.h>

namespace halftone::cuda {

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
