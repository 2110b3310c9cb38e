// Weights of convolutions in cuDNN's order: permuted once for a version. A recorded step, which
// changes them with every replay, does the same.
#include <doctest/doctest.h>

#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/for_cudnn.h>
#include <halftone/halftone.h>

#include "emulator.h"

namespace halftone::cuda {
namespace {

CudaBackend& backend() { return static_cast<CudaBackend&>(backend_for(Device::cuda())); }

Tensor weight(MemoryUse use) {
  const MemoryScope scope(use);
  return randn({6, 4, 3, 3}).to(Device::cuda());
}

TEST_CASE("a weight is permuted once for a version of it") {
  const Context& context = backend().context();
  const int64_t held = memory_report(Device::cuda()).now_of(MemoryUse::workspace);
  {
    Tensor w = weight(MemoryUse::parameter);
    const int64_t before = emulation::kernel_launches();
    const Tensor first = channels_last_weight(context, w);
    CHECK(first.is_channels_last());
    CHECK(channels_last_weight(context, w).raw_data() == first.raw_data());
    CHECK(emulation::kernel_launches() == before + 1);
    CHECK(first.to_vector<float>() == w.to_vector<float>());
    backend().fill(2, w);
    w.storage()->bump_version();
    CHECK(channels_last_weight(context, w).to_vector<float>() ==
          std::vector<float>(std::size_t(w.numel()), 2));
    // Another view of the same bytes is another weight.
    const Tensor other = w.view_as({4, 6, 3, 3}, {54, 9, 3, 1}, 0);
    CHECK(channels_last_weight(context, other).shape() == other.shape());
  }
  // The copy was freed with the weight.
  CHECK(memory_report(Device::cuda()).now_of(MemoryUse::workspace) == held);
}

TEST_CASE(
    "1x1 kernels are in this order already, and no copy is kept of other tensors than weights") {
  const Context& context = backend().context();
  const Tensor narrow = randn({6, 4, 1, 1}).to(Device::cuda());
  CHECK(channels_last_weight(context, narrow).raw_data() == narrow.raw_data());
  const Tensor x = weight(MemoryUse::activation);
  const Tensor once = channels_last_weight(context, x);
  CHECK(channels_last_weight(context, x).raw_data() != once.raw_data());
}

TEST_CASE("a recorded step permutes the weight that each replay finds") {
  Context& context = backend().context();
  Tensor w = weight(MemoryUse::parameter);
  backend().fill(1, w);
  Tensor seen = zeros(w.shape(), f32, Device::cuda());
  channels_last_weight(context, w);  // a copy of this version exists, outside of the recording
  backend().begin_capture();
  backend().copy(channels_last_weight(context, w), seen);
  const auto again = channels_last_weight(context, w);
  const int64_t recorded = emulation::kernel_launches();
  backend().copy(again, seen);  // the same copy: no permutation
  const auto work = backend().end_capture();
  CHECK(emulation::kernel_launches() - recorded <= 1);
  for (const float value : {3.0f, 5.0f}) {
    backend().fill(value, w);
    w.storage()->bump_version();
    work->replay(0, 0);
    CHECK(seen.to_vector<float>() == std::vector<float>(std::size_t(w.numel()), value));
  }
  // Other work does not see the copy of the recording: perhaps no replay has filled it yet.
  CHECK(channels_last_weight(context, w).to_vector<float>() ==
        std::vector<float>(std::size_t(w.numel()), 5));
}

}  // namespace
}  // namespace halftone::cuda
