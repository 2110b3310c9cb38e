// The parts of the emulated GPU that are stricter than a real one: work that waits in its stream,
// events that are not ready, copies that are late, poisoned memory.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>

#include <halftone/backends/cuda/launch.h>
#include <halftone/core/backend.h>
#include <halftone/core/captured_step.h>
#include <halftone/core/factory.h>

#include "emulator.h"
#include "switches.h"

namespace halftone::cuda {
namespace {

__global__ void add_to(int* at, int value) { *at += value; }

/// Its own stream, and an int on the device.
struct Machinery {
  const Context context{0};
  int* at = nullptr;
  int* locked = nullptr;  // page-locked
  cudaEvent_t event = nullptr;

  Machinery() {
    cudaMalloc(&at, sizeof(int));
    void* pages = nullptr;
    cudaHostAlloc(&pages, 2 * sizeof(int), cudaHostAllocDefault);
    locked = static_cast<int*>(pages);
    cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  }
  ~Machinery() {
    cudaStreamSynchronize(context.stream());
    cudaEventDestroy(event), cudaFreeHost(locked), cudaFree(at);
  }
};

TEST_CASE("deferred, work waits for the host, events are not ready, and copies are late") {
  // Until it may run by chance, which happens one time in sixteen.
  bool late = false;
  for (uint64_t seed = 1; seed < 50 && !late; ++seed) {
    const test::Deferred deferred(seed);
    Machinery m;
    cudaStreamSynchronize(m.context.stream());
    m.locked[0] = 5, m.locked[1] = 0;
    cudaMemcpyAsync(m.at, m.locked, sizeof(int), cudaMemcpyHostToDevice, m.context.stream());
    launch(m.context, add_to, {dim3(1), dim3(1)}, m.at, 1);
    cudaMemcpyAsync(m.locked + 1, m.at, sizeof(int), cudaMemcpyDeviceToHost, m.context.stream());
    cudaEventRecord(m.event, m.context.stream());
    if (emulation::pending_work() < 3) continue;
    late = true;
    CHECK(cudaEventQuery(m.event) == cudaErrorNotReady);
    CHECK(cudaGetLastError() == cudaErrorNotReady);
    CHECK(m.locked[1] == 0);
    m.locked[0] = 7;  // too early: the copy has not read it
    cudaEventSynchronize(m.event);
    CHECK(cudaEventQuery(m.event) == cudaSuccess);
    CHECK(m.locked[1] == 8);
  }
  CHECK(late);
}

TEST_CASE("deferred, work runs eventually without a wait, and before memory is freed") {
  const test::Deferred deferred(3);
  Machinery m;
  cudaMemsetAsync(m.at, 0, sizeof(int), m.context.stream());
  std::size_t most = 0;
  for (int i = 0; i < 1000; ++i) {
    launch(m.context, add_to, {dim3(1), dim3(1)}, m.at, 1);
    most = std::max(most, emulation::pending_work());
  }
  CHECK(most > 5);
  CHECK(most < 500);
  void* other = nullptr;
  cudaMalloc(&other, 1), cudaFree(other);
  CHECK(emulation::pending_work() == 0);
}

TEST_CASE("poisoned, device memory starts as NaNs") {
  const test::Poisoned poisoned;
  float* at = nullptr;
  cudaMalloc(&at, 100 * sizeof(float));
  float first = 0;
  const Context context(0);
  cudaMemcpyAsync(&first, at + 99, sizeof(float), cudaMemcpyDeviceToHost, context.stream());
  cudaStreamSynchronize(context.stream());
  CHECK(std::isnan(first));
  cudaFree(at);
}

TEST_CASE("poisoned, a replay that writes to free memory is found") {
  const Device gpu = Device::cuda();
  void* block = backend_for(gpu).allocate(512);
  const int64_t before = emulation::replays_outside();
  const Context context(0);
  cudaStreamBeginCapture(context.stream(), cudaStreamCaptureModeRelaxed);
  launch(context, add_to, {dim3(1), dim3(1)}, static_cast<int*>(block), 1);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  cudaStreamEndCapture(context.stream(), &graph);
  cudaGraphInstantiate(&executable, graph);
  cudaGraphDestroy(graph);
  {
    const test::Poisoned poisoned;
    cudaGraphLaunch(executable, context.stream());
    CHECK(cudaStreamSynchronize(context.stream()) == cudaSuccess);  // the block is in use
    backend_for(gpu).release(block, 512);
    cudaGraphLaunch(executable, context.stream());
    CHECK(cudaStreamSynchronize(context.stream()) == cudaErrorIllegalAddress);
    CHECK(cudaStreamSynchronize(context.stream()) == cudaSuccess);
  }
  cudaGetLastError();
  CHECK(emulation::replays_outside() == before + 1);
  cudaGraphExecDestroy(executable);
}

__global__ void note_order(int* next, int* order) {
  if (threadIdx.x == 0) order[blockIdx.x + gridDim.x * blockIdx.y] = (*next)++;
}

TEST_CASE("blocks run in the order that a test asks for, each once") {
  const Context context(0);
  for (const uint64_t seed : {0, 1, 7919, 123456}) {
    int* memory = nullptr;
    cudaMalloc(&memory, 13 * sizeof(int));
    cudaMemsetAsync(memory, 0, 13 * sizeof(int), context.stream());
    emulation::set_block_order(seed);
    launch(context, note_order, {dim3(4, 3), dim3(2)}, memory, memory + 1);
    int order[12] = {};
    cudaMemcpyAsync(order, memory + 1, sizeof order, cudaMemcpyDeviceToHost, context.stream());
    cudaStreamSynchronize(context.stream());
    emulation::set_block_order(0);
    cudaFree(memory);
    bool ascending = true;
    int sum = 0;
    for (int i = 0; i < 12; ++i) ascending &= order[i] == i, sum += 1 << order[i];
    CHECK(sum == (1 << 12) - 1);
    CHECK(ascending == (seed == 0));
  }
}

}  // namespace
}  // namespace halftone::cuda
