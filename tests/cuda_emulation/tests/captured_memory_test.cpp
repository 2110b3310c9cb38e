// Memory of captured steps: memory that a step used during its capture is not given to other work
// as long as the step can be replayed. The emulated GPU fills free memory with NaNs between replays
// and checks whether a replay wrote there.
#include <doctest/doctest.h>

#include <thread>

#include <halftone/backends/cuda/block_cache.h>
#include <halftone/halftone.h>

#include "counting_source.h"
#include "emulator.h"
#include "switches.h"

namespace halftone::cuda {
namespace {

TEST_CASE("a block that is released while a pool is filled is kept until that pool is dissolved") {
  for (const bool caching : {true, false}) {
    CAPTURE(caching);
    test::CountingSource from;
    BlockCache cache(from.source(), caching);
    void* const before = cache.allocate(1000);
    const int pool = cache.begin_pool();
    cache.release(before, 1000);
    cache.end_pool();
    cache.trim();
    CHECK(from.held > 0);  // the recorded work may use it
    for (int i = 0; i < 3000; ++i) CHECK(cache.allocate(1000) != before);
    cache.dissolve(pool);
    bool again = false;
    for (int i = 0; i < 3000 && !again; ++i) again = cache.allocate(1000) == before;
    CHECK(again == caching);
  }
}

TEST_CASE(
    "memory of one graph that is released while another is recorded also belongs to the other") {
  test::CountingSource from;
  BlockCache cache(from.source());
  const int first = cache.begin_pool();
  void* const result = cache.allocate(1000);
  cache.end_pool();
  const int second = cache.begin_pool();
  cache.release(result, 1000);
  cache.end_pool();
  cache.dissolve(first);
  cache.trim();
  for (int i = 0; i < 5000; ++i) CHECK(cache.allocate(1000) != result);
  cache.dissolve(second);
  bool again = false;
  for (int i = 0; i < 5000 && !again; ++i) again = cache.allocate(1000) == result;
  CHECK(again);
}

TEST_CASE("nothing is given back while a pool is filled, also if there is no more") {
  test::CountingSource from;
  from.limit = std::size_t(8) << 20;
  BlockCache cache(from.source());
  void* const unused = cache.allocate(std::size_t(5) << 20);
  cache.release(unused, std::size_t(5) << 20);
  const int pool = cache.begin_pool();
  cache.trim();
  CHECK(cache.allocate(std::size_t(6) << 20) == nullptr);
  CHECK(from.held > 0);
  cache.end_pool();
  cache.dissolve(pool);
  CHECK(cache.allocate(std::size_t(6) << 20) != nullptr);
}

TEST_CASE("while a pool is filled, other threads get blocks from outside of it") {
  test::CountingSource from;
  BlockCache cache(from.source());
  void* const free = cache.allocate(1000);
  cache.release(free, 1000);
  const int pool = cache.begin_pool();
  void* others = nullptr;
  std::thread([&] { others = cache.allocate(1000); }).join();
  CHECK(others == free);
  void* const own = cache.allocate(1000);
  cache.end_pool();
  cache.dissolve(pool);
  CHECK(own != others);
}

TEST_CASE("a step that releases memory during its capture continues to use it") {
  const test::Poisoned poisoned;
  const Device gpu = Device::cuda();
  const int64_t outside = emulation::replays_outside();
  Tensor read = full({1000}, 2, f32, gpu), written = full({3000}, 1, f32, gpu);
  CapturedStep step([&](const std::vector<Tensor>& in) {
    Tensor y = in[0] * (read.defined() ? read : in[0]);
    if (written.defined()) backend_for(gpu).fill(3, written);
    if (recording_step()) read = {}, written = {};
    return y;
  });
  const Tensor x = full({1000}, 5, f32, gpu);
  for (int i = 0; i < 5; ++i) {
    CHECK(step({x}).to_vector<float>() == std::vector<float>(1000, 10));
    const Tensor other = full({3000}, 7, f32, gpu);  // must not get the step's memory
    step({x});
    CHECK(other.to_vector<float>() == std::vector<float>(3000, 7));
  }
  CHECK(step.captured());
  CHECK(emulation::replays_outside() == outside);
}

TEST_CASE(
    "a captured step with gradients that were there before leaves the memory of others alone") {
  const test::Poisoned poisoned;
  const Device gpu = Device::cuda();
  const int64_t outside = emulation::replays_outside();
  manual_seed(1);
  nn::Linear layer(30, 20);
  layer.to(gpu);
  optim::Sgd optimizer(layer.parameters(), {.lr = 0.1});
  optimizer.publish_rates();
  CapturedStep step([&](const std::vector<Tensor>& in) {
    const Tensor loss = mean(square(layer(in[0])));
    loss.backward();  // adds to the gradients of the step before
    optimizer.step();
    optimizer.zero_grad();  // and releases them
    return loss;
  });
  const Tensor x = randn({8, 30}).to(gpu);
  double last = 1e30;
  for (int i = 0; i < 6; ++i) {
    const double loss = step({x}).item();
    CHECK(loss < last);
    last = loss;
  }
  CHECK(step.captured());
  CHECK(emulation::replays_outside() == outside);
}

}  // namespace
}  // namespace halftone::cuda
