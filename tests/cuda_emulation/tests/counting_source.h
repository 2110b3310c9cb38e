// A source of slabs for the cache of device memory that counts the slabs.
#pragma once

#include <cstdlib>
#include <map>

#include <halftone/backends/cuda/block_cache.h>

namespace halftone::test {

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
