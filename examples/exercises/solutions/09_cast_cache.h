// One entry per weight and dtype. It owns the weight and the memory, so that addresses are theirs.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "given.h"

struct Entry {
  Var weight{};
  std::shared_ptr<Storage> storage{};
  uint64_t version = 0;
  Var result{};
};
struct ThreadState {
  std::vector<Dtype> regions{};
  std::map<std::pair<Tensor*, Dtype>, Entry> cache{};
};
inline ThreadState& state() {
  static thread_local ThreadState of_this_thread;
  return of_this_thread;
}

class Autocast {
 public:
  explicit Autocast(Dtype dtype) { state().regions.push_back(dtype); }
  ~Autocast() {
    state().regions.pop_back();
    if (state().regions.empty()) state().cache.clear();
  }
  Autocast(const Autocast&) = delete;
};

inline Var operand(const Var& x) {
  if (state().regions.empty() || x->dtype != Dtype::f32) return x;
  const Dtype dtype = state().regions.back();
  if (dtype == Dtype::f32) return x;
  if (!x->is_leaf() || !x->requires_grad) return cast(x, dtype);
  Entry& entry = state().cache[{x.get(), dtype}];
  if (entry.storage != x->storage || entry.version != x->storage->version) {
    const EnableGrad recorded;
    entry = {x, x->storage, x->storage->version, cast(x, dtype)};
  }
  return entry.result;
}

inline std::size_t cached() { return state().cache.size(); }
