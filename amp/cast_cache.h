// Casts of parameters, kept until a region ends, so that a weight used ten times is cast once. An
// entry holds its source and knows the storage, its version and the dtype of the cast. So a reused
// address, an updated weight or a second dtype cannot give a wrong hit.
#pragma once

#include <cstdint>
#include <functional>
#include <unordered_map>

#include <halftone/core/tensor.h>

namespace halftone::amp {

struct CacheCounters {
  int64_t hits = 0, misses = 0, bytes = 0;  // bytes: of all casts made
};

class CastCache {
 public:
  /// Returns whether to keep casts of x: an f32 leaf that requires a gradient and is not a view.
  static bool serves(const Tensor& x);
  /// Returns x in `dtype`, as a recorded cast whether or not recording is on: training can later
  /// use an entry made under NoGrad. Its bytes are charged to MemoryUse::cast_cache until the last
  /// graph that uses it is destroyed. channels_last: a new cast has this order in memory.
  Tensor cast(const Tensor& x, DType dtype, bool channels_last = false);
  void clear() { entries_.clear(); }
  std::size_t size() const { return entries_.size(); }
  const CacheCounters& counters() const { return counters_; }

 private:
  struct Key {
    const AutogradMeta* source;  // the leaf: gradients must reach this one
    DType dtype;
    bool operator==(const Key&) const = default;
  };
  struct HashKey {
    std::size_t operator()(const Key& key) const {
      return std::hash<const void*>{}(key.source) ^ std::size_t(key.dtype);
    }
  };
  struct Entry {
    Tensor source;                     // keeps the leaf alive
    std::shared_ptr<Storage> storage;  // and the data it was cast from
    uint64_t version;
    Tensor result;
  };
  std::unordered_map<Key, Entry, HashKey> entries_;
  CacheCounters counters_;
};

}  // namespace halftone::amp
