// Sets switches of the emulated GPU for the lifetime of a variable, then restores them.
#pragma once

#include <cstdlib>
#include <map>

#include <halftone/backends/cuda/block_cache.h>

#include "emulator.h"

namespace halftone::test {

class Deferred {
 public:
  explicit Deferred(uint64_t seed) : before_(emulation::deferred()) {
    emulation::set_deferred(0), emulation::set_deferred(seed);
  }
  ~Deferred() { emulation::set_deferred(0), emulation::set_deferred(before_ ? 1 : 0); }
  Deferred(const Deferred&) = delete;
  Deferred& operator=(const Deferred&) = delete;

 private:
  bool before_;
};

class Poisoned {
 public:
  Poisoned() : before_(emulation::set_poison(true)) {}
  ~Poisoned() { emulation::set_poison(before_); }
  Poisoned(const Poisoned&) = delete;
  Poisoned& operator=(const Poisoned&) = delete;

 private:
  bool before_;
};

// A source of slabs for the cache of device memory that counts the slabs.

struct CountingSource {
  std::size_t limit = std::size_t(-1), held = 0;
  std::map<void*, std::size_t> slabs;

  cuda::BlockCache::Source source() {
    return {[this](std::size_t bytes) -> void* {
              if (held + bytes > limit) return nullptr;
              void* const data = std::aligned_alloc(512, (bytes + 511) / 512 * 512);
              slabs[data] = bytes, held += bytes;
              return data;
            },
            [this](void* data) {
              held -= slabs.at(data);
              slabs.erase(data);
              std::free(data);
            }};
  }
};

}  // namespace halftone::test
