// The cache of device memory with a source that counts, running out of memory, and calls that the
// runtime refuses.
#include <cstring>
#include <deque>
#include <random>
#include <set>
#include <thread>

#include <doctest/doctest.h>

#include <halftone/backends/cuda/block_cache.h>
#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/launch.h>
#include <halftone/backends/cuda/libraries.h>
#include <halftone/core/backend.h>
#include <halftone/core/factory.h>
#include <halftone/core/files.h>
#include <halftone/core/memory.h>
#include <halftone/halftone.h>

#include "../../device/device_cases.h"
#include "emulator.h"
#include "switches.h"

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

// Memory of captured steps: memory that a step used during its capture is not given to other work
// as long as the step can be replayed. The emulated GPU fills free memory with NaNs between replays
// and checks whether a replay wrote there.

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
    const std::size_t held = from.held;
    cache.dissolve(pool);
    if (!caching) {
      CHECK(from.held == held - 1000);  // it went back to the source
      continue;
    }
    bool again = false;
    for (int i = 0; i < 3000 && !again; ++i) again = cache.allocate(1000) == before;
    CHECK(again);
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

// Blocks above 1 MiB are cut from slabs and joined again, and never overlap.

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

TEST_CASE("work moves to another library's stream and back, each time after the work before it") {
  auto& backend = static_cast<CudaBackend&>(backend_for(Device::cuda()));
  cudaStream_t const own = backend.context().stream();
  cudaStream_t other = nullptr;
  cuda::check(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), "making a stream");
  for (uint64_t seed = 1; seed < 20; ++seed) {
    const test::Deferred deferred(seed);
    const Tensor one = full({1000}, 1.0, f32, Device::cuda());
    Tensor x = one;
    for (int i = 0; i < 12; ++i) {
      backend.use_stream(i % 3 == 0 ? own : i % 3 == 1 ? other : nullptr);
      x = add(x, one);
    }
    CHECK(x.to_vector<float>() == std::vector<float>(1000, 13.0f));
  }
  backend.use_stream(own);
  backend.synchronize();
  cudaStreamDestroy(other);
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

// Device memory is exhausted at any allocation of a training step: once (unused memory is given
// back, the step continues) or permanently (an error). Afterwards the same step gives the bits of
// an undisturbed run. With HALFTONE_CUDA_CACHE=off every tensor is an allocation.

namespace halftone::test {
namespace {

struct Training {
  DeviceCase c;
  optim::NamedTensors before{};

  Training(const std::string& kind, const std::string& strategy)
      : c(kind, strategy, Device::cuda()) {
    for (int i = 0; i < 2; ++i) c.step(true);
    before = state();
  }
  /// The model, the optimizer, the loss scale, the generator.
  optim::NamedTensors state() const {
    optim::NamedTensors copies;
    for (const auto& [name, x] : c.training->state_dict())
      copies[name] = x.to(Device::cpu()).clone();
    return copies;
  }
  void restore() {
    c.training->load_state_dict(before);
    c.training->zero_grad();
  }
};

struct Counts {
  int attempts = 0, threw = 0;
};

/// Every `stride`-th allocation of a step fails `failures` times in a row.
Counts fail_each(Training& run, const optim::NamedTensors& wanted, int failures, int64_t stride) {
  auto& memory = static_cast<CudaBackend&>(backend_for(Device::cuda())).context().memory();
  Counts counts;
  for (int64_t n = 0;; n += stride) {
    CAPTURE(n);
    run.restore();
    memory.trim();
    const int64_t before = emulation::allocations();
    bool threw = false;
    emulation::fail_allocations(n, failures);
    try {
      run.c.step(true);
    } catch (const DeviceError& error) {
      threw = true;
      CHECK(std::string(error.what()).starts_with("[allocate] cannot allocate"));
    }
    emulation::fail_allocations(0, 0);
    if (emulation::allocations() - before <= n) return counts;
    ++counts.attempts, counts.threw += threw;
    if (!threw) {
      CHECK(equal_bits(run.state(), wanted));
      continue;
    }
    // Either the whole step was done, or nothing except that random numbers were drawn.
    const optim::NamedTensors now = run.state();
    const bool moved = !equal_bits(now.at("generator"), run.before.at("generator"));
    optim::NamedTensors unchanged = run.before;
    if (moved) unchanged.at("generator") = now.at("generator");
    CHECK((equal_bits(now, unchanged) || equal_bits(now, wanted)));
    run.restore();
    run.c.step(true);
    CHECK(equal_bits(run.state(), wanted));
  }
}

TEST_CASE("memory that runs out at any allocation of a step leaves no bytes allocated") {
  const bool exact = environment_variable("HALFTONE_CUDA_CACHE") != nullptr;
  for (const auto& [kind, strategy] :
       {std::pair{"mlp", "amp-fp16"}, std::pair{"mlp", "o2-bf16"}, std::pair{"gpt", "amp-bf16"}}) {
    CAPTURE(kind);
    CAPTURE(strategy);
    Training run(kind, strategy);
    run.restore();
    run.c.step(true);
    const optim::NamedTensors wanted = run.state();
    const int64_t stride = exact && std::string(kind) == "gpt" ? 7 : 1;
    const int64_t ledger = memory_report(Device::cuda()).total_now;
    const Counts once = fail_each(run, wanted, 1, stride),
                 twice = fail_each(run, wanted, 2, stride);
    CHECK(once.attempts > (exact ? 25 : 0));
    CHECK(once.threw == 0);  // unused memory was given back, and the second attempt succeeded
    CHECK(twice.threw > 0);
    run.restore();
    CHECK(memory_report(Device::cuda()).total_now <= ledger);
  }
}

}  // namespace
}  // namespace halftone::test

// Refusals of a library: an unsupported call is remembered, a call that cannot be done now is tried
// again. The test uses no library.

namespace halftone::cuda {
namespace {

struct Plan {
  int number;
};
using Cache = PlanCache<int, Plan>;

/// A library that first gives the answers of a list, and then success.
struct Told {
  std::deque<Answer> to_make{}, to_run{};
  int made = 0, ran = 0, trims = 0, last = -1;

  Cache::Calls calls(bool recorded = false) {
    return {.make = [this](std::unique_ptr<Plan>& plan) -> Outcome {
              const Answer answer = next(to_make);
              if (answer != Answer::done) return {answer, "making"};
              plan = std::make_unique<Plan>(++made);
              return {};
            },
            .run = [this](Plan& plan) -> Outcome {
              const Answer answer = next(to_run);
              if (answer != Answer::done) return {answer, "running"};
              ++ran, last = plan.number;
              return {};
            },
            .trim = [this] { ++trims; },
            .recorded = recorded};
  }
  static Answer next(std::deque<Answer>& told) {
    if (told.empty()) return Answer::done;
    const Answer answer = told.front();
    return told.pop_front(), answer;
  }
};
constexpr auto done = Answer::done, unsupported = Answer::unsupported, not_now = Answer::not_now;

TEST_CASE("a plan is made once and runs each time") {
  Cache cache(10);
  Told library;
  for (int i = 0; i < 5; ++i) CHECK(cache.run(1, library.calls()).answer == done);
  CHECK(cache.run(2, library.calls()).answer == done);
  CHECK(library.made == 2);
  CHECK(library.ran == 6);
  CHECK(library.last == 2);
  CHECK(library.trims == 0);
}

TEST_CASE("an unsupported call is asked for once") {
  Cache cache(10);
  Told library{.to_make = {unsupported}};
  const Outcome first = cache.run(1, library.calls());
  CHECK(first.answer == unsupported);
  CHECK(first.why == "making");
  for (int i = 0; i < 5; ++i) CHECK(cache.run(1, library.calls()).answer == unsupported);
  CHECK(library.made == 0);
  Told running{.to_run = {unsupported}};
  CHECK(cache.run(2, running.calls()).answer == unsupported);
  CHECK(cache.run(2, running.calls()).why == "declined before");
  CHECK(running.ran == 0);
}

TEST_CASE("lack of memory: unused memory is given back, and the same call is tried again at once") {
  Cache cache(10);
  Told library{.to_make = {not_now}, .to_run = {not_now}};
  CHECK(cache.run(1, library.calls()).answer == done);
  CHECK(library.trims == 2);
  CHECK(library.made == 1);
  CHECK(library.ran == 1);
}

TEST_CASE("lack of memory is not remembered forever") {
  Cache cache(10);
  Told library{.to_make = {not_now, not_now}};
  CHECK(cache.run(1, library.calls()).answer == not_now);
  CHECK(cache.run(1, library.calls()).answer == done);  // the second call finds memory
  library.to_run = {not_now, not_now};
  CHECK(cache.run(1, library.calls()).answer == not_now);
  CHECK(cache.run(1, library.calls()).answer == done);
  CHECK(library.made == 1);
}

TEST_CASE("a persistent error is asked about less and less often") {
  Cache cache(10);
  Told library{.to_make = std::deque<Answer>(10'000, not_now)};
  for (int i = 0; i < 1000; ++i) CHECK(cache.run(1, library.calls()).answer == not_now);
  CHECK(library.trims <= 12);
  library.to_make.clear();
  int calls = 0;
  while (cache.run(1, library.calls()).answer != done) ++calls;
  CHECK(calls <= 1024);
}

TEST_CASE("the least recently used plans are dropped when there are too many, after a wait") {
  int waits = 0;
  PlanCache<int, Plan> cache(100, [&] { ++waits; });
  Told library;
  for (int key = 0; key < 1000; ++key) {
    CHECK(cache.run(key, library.calls()).answer == done);
    CHECK(cache.run(0, library.calls()).answer == done);  // in use
    CHECK(cache.size() <= 101);
  }
  CHECK(library.made == 1000);  // key 0 once
  CHECK(waits > 0);
  CHECK(waits < 50);
  cache.run(999, library.calls());
  CHECK(library.made == 1000);
  cache.run(1, library.calls());
  CHECK(library.made == 1001);
}

TEST_CASE("declined calls do not fill the cache either") {
  Cache cache(100);
  Told library{.to_make = std::deque<Answer>(1000, unsupported)};
  for (int key = 0; key < 1000; ++key) cache.run(key, library.calls());
  CHECK(cache.size() <= 101);
}

TEST_CASE("a plan that is recorded stays, and nothing is dropped meanwhile") {
  int waits = 0;
  PlanCache<int, Plan> cache(10, [&] { ++waits; });
  Told library;
  for (int key = 0; key < 50; ++key) cache.run(key, library.calls(true));
  CHECK(waits == 0);
  CHECK(cache.size() == 50);
  for (int key = 100; key < 200; ++key) cache.run(key, library.calls());
  const int made = library.made;
  for (int key = 0; key < 50; ++key) cache.run(key, library.calls());
  CHECK(library.made == made);
}

TEST_CASE(
    "the statuses of cuDNN: parameters and combinations are refused for good, the rest is not") {
  CHECK(answer_of_cudnn(0) == done);
  for (const int status : {2000, 2002, 3000, 3007}) CHECK(answer_of_cudnn(status) == unsupported);
  for (const int status : {1001, 1003, 4000, 4002, 4003, 5000, 5003})
    CHECK(answer_of_cudnn(status) == not_now);
}

TEST_CASE("a declined call is reported once, with its reason") {
  const std::size_t before = declined_calls().size();
  for (int i = 0; i < 3; ++i)
    say_declined(By::cudnn, Family::conv, "[7, 7] of this test", i == 0 ? "no engine" : "again");
  say_declined(By::cudnn, Family::conv_backward_data, "[7, 7] of this test", "no memory");
  const std::vector<std::string> said = declined_calls();
  REQUIRE(said.size() == before + 2);
  CHECK(said[before] == "[cuda] cuDNN declined conv of [7, 7] of this test: no engine");
  CHECK(said[before + 1] ==
        "[cuda] cuDNN declined conv_backward_data of [7, 7] of this test: no memory");
}

}  // namespace
}  // namespace halftone::cuda
