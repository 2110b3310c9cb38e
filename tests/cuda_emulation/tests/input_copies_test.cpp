// Large inputs are copied in their own stream, at the same time as the computation. A copy never
// starts before its source is complete, never reads it after a change, and never writes to memory
// that earlier kernels still use.
#include <doctest/doctest.h>

#include <halftone/autograd/ops.h>
#include <halftone/core/backend.h>
#include <halftone/core/factory.h>
#include <halftone/core/memory.h>

#include "emulator.h"
#include "switches.h"

namespace halftone::test {
namespace {

const int64_t large = (int64_t(3) << 20) / 4 + 5;  // numbers: 3 MiB and a bit

Tensor moved(const Tensor& x) {
  const MemoryScope scope(MemoryUse::input);
  return x.to(Device::cuda());
}

TEST_CASE("large inputs arrive in order with the computation, in every order of streams") {
  for (const uint64_t seed : {3, 11, 29, 58}) {
    CAPTURE(seed);
    const Deferred deferred(seed);
    Tensor batch = empty({large}, f32);
    std::vector<Tensor> sums;
    const int64_t waits = emulation::host_waits();
    for (int step = 0; step < 12; ++step) {
      std::fill_n(batch.data<float>(), large, float(step));
      const Tensor there = moved(batch);
      std::fill_n(batch.data<float>(), large, -1.0f);  // the next batch is collated here
      // Memory that is released here goes to the next input, which must not arrive before this one
      // was read.
      Tensor y = there;
      for (int k = 0; k < 3; ++k) y = y * 1.0 + 0.0;
      sums.push_back(mean(y));
    }
    CHECK(emulation::host_waits() == waits);
    for (int step = 0; step < 12; ++step)
      CHECK(sums[std::size_t(step)].item() == doctest::Approx(step));
  }
}

TEST_CASE("a large input is copied and waited for, everything else is only copied") {
  const Device gpu = Device::cuda();
  const Tensor x = full({large}, 4, f32);
  const auto enqueued = [&](MemoryUse use) {
    const MemoryScope scope(use);
    const std::size_t before = emulation::enqueued_work();
    const Tensor there = x.to(gpu);
    const std::size_t items = emulation::enqueued_work() - before;
    CHECK(there.to_vector<float>() == std::vector<float>(std::size_t(large), 4));
    return items;
  };
  enqueued(MemoryUse::input);  // the buffer, with its memory on the device
  CHECK(enqueued(MemoryUse::input) == 3);
  CHECK(enqueued(MemoryUse::parameter) == 1);
}

TEST_CASE("without memory for them inputs are copied as everything else is") {
  const Tensor x = full({large * 8}, 2, f32);
  emulation::set_total_memory(emulation::allocated_bytes() + (std::size_t(26) << 20));
  const Tensor there = moved(x);
  emulation::set_total_memory(std::size_t(8) << 30);
  CHECK(there.to_vector<float>() == std::vector<float>(std::size_t(large) * 8, 2));
}

}  // namespace
}  // namespace halftone::test
