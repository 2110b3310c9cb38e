// Blocks above 1 MiB are cut from slabs and joined again, and never overlap.
#include <doctest/doctest.h>

#include <cstring>
#include <random>

#include <halftone/backends/cuda/block_cache.h>

#include "counting_source.h"

namespace halftone::cuda {
namespace {

using test::CountingSource;
constexpr std::size_t mib = std::size_t(1) << 20;

TEST_CASE("large blocks share slabs, and use the ranges of freed blocks") {
  CountingSource from;
  BlockCache cache(from.source());
  std::vector<void*> blocks;
  for (int i = 0; i < 10; ++i) blocks.push_back(cache.allocate(2 * mib));
  CHECK(cache.statistics().slabs == 1);  // 20 MiB
  CHECK(cache.statistics().used == 20 * mib);
  for (const int i : {3, 5, 4}) cache.release(blocks[std::size_t(i)], 2 * mib);
  CHECK(cache.allocate(6 * mib) == blocks[3]);  // the three are one range
  CHECK(cache.statistics().slabs == 1);
  CHECK(cache.statistics().reserved == 20 * mib);
  cache.allocate(30 * mib);
  CHECK(cache.statistics().reserved == 50 * mib);
}

TEST_CASE("the smallest range that is large enough is used") {
  CountingSource from;
  BlockCache cache(from.source());
  void* const five = cache.allocate(5 * mib);
  cache.allocate(2 * mib);
  void* const three = cache.allocate(3 * mib);
  cache.allocate(10 * mib);  // the slab is full
  cache.release(five, 5 * mib), cache.release(three, 3 * mib);
  CHECK(cache.allocate(3 * mib - 1) == three);
  CHECK(cache.allocate(4 * mib) == five);
}

TEST_CASE("adjacent slabs stay separate") {
  std::vector<std::byte> memory(64);
  FreeRanges ranges;
  ranges.add(memory.data(), 32), ranges.add(memory.data() + 32, 32);
  CHECK(ranges.take(33) == nullptr);
  std::byte* const first = ranges.take(32);
  std::byte* const second = ranges.take(32);
  CHECK(ranges.put_back(first) == 32);
  CHECK(ranges.put_back(second) == 32);
  CHECK(ranges.take(64) == nullptr);
  CHECK(ranges.remove_unused().size() == 2);
  CHECK(ranges.free().empty());
}

TEST_CASE("a slab of which a block is used is not given back, one that is all free is") {
  CountingSource from;
  BlockCache cache(from.source());
  void* const kept = cache.allocate(2 * mib);
  void* const released = cache.allocate(3 * mib);
  void* const own = cache.allocate(40 * mib);
  cache.release(released, 3 * mib), cache.release(own, 40 * mib);
  cache.trim();
  CHECK(from.held == 20 * mib);
  CHECK(cache.statistics().reserved == 20 * mib);
  cache.release(kept, 2 * mib);
  cache.trim();
  CHECK(from.held == 0);
}

TEST_CASE("if a slab of the usual size is too much, a block gets a slab of its own size") {
  CountingSource from;
  from.limit = 8 * mib;
  BlockCache cache(from.source());
  CHECK(cache.allocate(5 * mib) != nullptr);
  CHECK(from.held == 5 * mib);
  CHECK(cache.allocate(5 * mib) == nullptr);
}

TEST_CASE(
    "large blocks of a pool stay in it until it is dissolved, and blocks next to it are kept") {
  CountingSource from;
  BlockCache cache(from.source());
  void* const before = cache.allocate(4 * mib);
  const int pool = cache.begin_pool();
  void* const inside = cache.allocate(4 * mib);
  CHECK(cache.statistics().slabs == 2);
  cache.release(before, 4 * mib);
  cache.release(inside, 4 * mib);
  CHECK(cache.allocate(4 * mib) == inside);
  cache.release(inside, 4 * mib);
  cache.end_pool();
  cache.trim();
  CHECK(cache.allocate(16 * mib) != before);
  CHECK(cache.statistics().slabs == 2);  // in the rest of the first
  cache.dissolve(pool);
  bool again = false, its = false;
  for (int i = 0; i < 20; ++i) {
    void* const data = cache.allocate(4 * mib);
    again = again || data == before, its = its || data == inside;
  }
  CHECK(again);
  CHECK(its);
}

TEST_CASE(
    "blocks of random sizes keep what was written to them, and a repeated step needs no new slab") {
  CountingSource from;
  BlockCache cache(from.source());
  std::mt19937 random(3);
  int64_t slabs = 0;
  for (int step = 0; step < 8; ++step) {
    std::mt19937 of_step(7);  // the same sizes and order each time
    struct Block {
      unsigned char* data;
      std::size_t bytes;
      unsigned char mark;
    };
    std::vector<Block> live;
    const auto release = [&](std::size_t i) {
      CHECK(live[i].data[0] == live[i].mark);
      CHECK(live[i].data[live[i].bytes - 1] == live[i].mark);
      cache.release(live[i].data, live[i].bytes);
      live[i] = live.back();
      live.pop_back();
    };
    for (int i = 0; i < 300; ++i) {
      const std::size_t bytes = of_step() % 3 ? mib + of_step() % (12 * mib) : 1 + of_step() % mib;
      auto* const data = static_cast<unsigned char*>(cache.allocate(bytes));
      REQUIRE(data != nullptr);
      CHECK(reinterpret_cast<std::uintptr_t>(data) % BlockCache::alignment == 0);
      const auto mark = static_cast<unsigned char>(random());
      data[0] = data[bytes - 1] = mark;
      live.push_back({data, bytes, mark});
      if (live.size() > 20 || of_step() % 2) release(of_step() % live.size());
    }
    while (!live.empty()) release(live.size() - 1);
    CHECK(cache.statistics().used == 0);
    if (step == 1) slabs = cache.statistics().slabs;
    if (step > 1) CHECK(cache.statistics().slabs == slabs);
  }
  cache.trim();
  CHECK(from.held == 0);
}

}  // namespace
}  // namespace halftone::cuda
