// The cache of device memory with a source that counts, running out of memory, and calls that the
// runtime refuses.
#include <set>

#include <doctest/doctest.h>

#include <halftone/backends/cuda/block_cache.h>
#include <halftone/backends/cuda/launch.h>
#include <halftone/core/backend.h>
#include <halftone/core/factory.h>
#include <halftone/core/memory.h>

#include "counting_source.h"
#include "emulator.h"

namespace halftone::cuda {
namespace {

using test::CountingSource;

TEST_CASE("size classes hold the requested size, waste at most a quarter, and are in order") {
  std::size_t last = 0, last_index = 0;
  for (std::size_t bytes : {0, 1, 511, 512, 513, 2048, 2049, 5000, 70000, 1 << 20, (1 << 20) + 1}) {
    const SizeClass c = size_class(bytes, 512);
    CHECK(c.bytes >= bytes);
    CHECK(c.bytes % 512 == 0);
    CHECK(c.bytes >= last);
    CHECK(c.index >= last_index);
    if (bytes > 2048) CHECK(double(c.bytes) <= 1.25 * double(bytes) + 512);
    last = c.bytes, last_index = c.index;
  }
}

TEST_CASE("freed blocks are allocated again, small ones share a slab") {
  CountingSource from;
  BlockCache cache(from.source());
  std::set<void*> first;
  for (int i = 0; i < 100; ++i) first.insert(cache.allocate(1000));
  CHECK(first.size() == 100);
  CHECK(cache.statistics().slabs == 1);
  for (void* data : first) cache.release(data, 1000);
  CHECK(cache.statistics().used == 0);
  for (int i = 0; i < 100; ++i) CHECK(first.contains(cache.allocate(1000)));
  CHECK(cache.statistics().slabs == 1);
  void* const large = cache.allocate(std::size_t(5) << 20);
  cache.release(large, std::size_t(5) << 20);
  CHECK(cache.allocate(std::size_t(5) << 20) == large);
}

TEST_CASE("when the source has no more, unused blocks are given back first") {
  CountingSource from;
  from.limit = std::size_t(8) << 20;
  BlockCache cache(from.source());
  void* const small = cache.allocate(100);
  void* const large = cache.allocate(std::size_t(4) << 20);
  cache.release(large, std::size_t(4) << 20);
  void* const other = cache.allocate(std::size_t(5) << 20);  // only with the large block's memory
  CHECK(other != nullptr);
  CHECK(cache.allocate(std::size_t(5) << 20) == nullptr);
  cache.release(other, std::size_t(5) << 20), cache.release(small, 100);
  cache.trim();
  CHECK(from.held == 0);
}

TEST_CASE("a pool keeps its blocks to itself until it is dissolved") {
  CountingSource from;
  BlockCache cache(from.source());
  void* const before = cache.allocate(1000);
  cache.release(before, 1000);
  const int pool = cache.begin_pool();
  void* const inside = cache.allocate(1000);
  CHECK(inside != before);
  CHECK(cache.allocate(1000) != before);  // the pool takes only its own
  cache.end_pool();
  cache.release(inside, 1000);
  CHECK(cache.allocate(1000) == before);
  CHECK(cache.allocate(1000) != inside);
  cache.dissolve(pool);
  bool found = false;
  for (int i = 0; i < 5000 && !found; ++i) found = cache.allocate(1000) == inside;
  CHECK(found);
}

TEST_CASE(
    "free memory in the pool of a captured graph is not given back before the graph is destroyed") {
  for (const bool caching : {true, false}) {
    CAPTURE(caching);
    CountingSource from;
    BlockCache cache(from.source(), caching);
    const int pool = cache.begin_pool();
    void* const inside = cache.allocate(1000);
    cache.release(inside, 1000);
    void* const larger = cache.allocate(1020);  // of the same size class
    if (!caching) CHECK(larger != inside);
    cache.release(larger, 1020);
    cache.end_pool();
    cache.trim();
    CHECK(from.held > 0);  // replays still write there
    cache.dissolve(pool);
    cache.trim();
    CHECK(from.held == 0);
  }
}

TEST_CASE("a GPU that the kernels are not compiled for is an error that says which GPU they need") {
  emulation::set_compute_capability(7, 5);
  CHECK_THROWS_WITH_AS(Context(0),
                       doctest::Contains("emulated GPU, has compute capability 7.5. The kernels "
                                         "need 8.0 (Ampere) or later: use the CPU."),
                       DeviceError);
  emulation::set_compute_capability(9, 0);
  CHECK_THROWS_WITH_AS(Context(3), doctest::Contains("there is no device 3 among 1"), DeviceError);
}

__global__ void set_to_seven(int* at) { *at = 7; }

TEST_CASE("a kernel that cannot start is an error that says why, and the next one starts") {
  Context context(0);  // with its own stream: other streams see its work after it has waited
  const Tensor x = zeros({1}, i32, Device::cuda());
  backend_for(x).synchronize();
  CHECK_THROWS_WITH_AS(launch(context, set_to_seven, {dim3(1), dim3(2048)}, x.data<int32_t>()),
                       "[cuda] starting a kernel failed: cudaError, an error of the emulated GPU "
                       "(driver 13000, runtime 13000). If it repeats, run under compute-sanitizer "
                       "to see where.",
                       DeviceError);
  CHECK(x.item() == 0);
  CHECK(cudaGetLastError() == cudaSuccess);
  launch(context, set_to_seven, {dim3(1), dim3(1)}, x.data<int32_t>());
  context.wait();
  CHECK(x.item() == 7);
}

TEST_CASE("the device holds what the ledger says, and no more than the rounding of blocks") {
  const std::size_t free_before = emulation::allocated_bytes();
  const int64_t ledger_before = memory_report(Device::cuda()).total_now;
  std::vector<Tensor> tensors;
  for (int i = 1; i < 60; ++i) tensors.push_back(zeros({int64_t(i) * 10'000}, f32, Device::cuda()));
  const auto ledger = double(memory_report(Device::cuda()).total_now - ledger_before);
  const auto held = double(emulation::allocated_bytes() - free_before);
  CHECK(held <= 1.25 * ledger + 40 * double(1 << 21));
  CHECK(held >= 0.5 * ledger);  // some of it may have been in the cache
}

TEST_CASE("running out of device memory prints the ledger, and smaller tensors still fit") {
  emulation::set_total_memory(emulation::allocated_bytes() + (std::size_t(64) << 20));
  const Tensor held = zeros({int64_t(4) << 20}, f32, Device::cuda());
  try {
    zeros({int64_t(64) << 20}, f32, Device::cuda());
    FAIL("nothing was thrown");
  } catch (const DeviceError& e) {
    const std::string text = e.what();
    CHECK(text.starts_with("[allocate] cannot allocate 256.0 MiB on cuda:0"));
    CHECK(text.find("Use a smaller batch or model.") != std::string::npos);
    CHECK(text.find("activation") != std::string::npos);  // the ledger
  }
  CHECK(zeros({100}, f32, Device::cuda()).to_vector<float>() == std::vector<float>(100, 0));
  emulation::set_total_memory(std::size_t(8) << 30);
}

}  // namespace
}  // namespace halftone::cuda
