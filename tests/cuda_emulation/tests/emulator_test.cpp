// The parts of the emulated GPU that are stricter than a real one: work that waits in its stream,
// events that are not ready, copies that are late, poisoned memory.
#include <cmath>
#include <cstring>
#include <thread>

#include <doctest/doctest.h>

#include <halftone/autograd/ops.h>
#include <halftone/backends/cuda/launch.h>
#include <halftone/backends/cuda/update_slots.h>
#include <halftone/core/backend.h>
#include <halftone/core/captured_step.h>
#include <halftone/core/factory.h>
#include <halftone/core/memory.h>
#include <halftone/halftone.h>

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

// Two GPUs in one program (HALFTONE_EMULATED_DEVICES=2): each call reaches its own device, and not
// the one that was used last.

namespace halftone::test {
namespace {

struct Trained {
  double loss;
  std::vector<float> weights;
  bool operator==(const Trained&) const = default;
};

/// A few steps on a device; between them the other device does other work.
Trained trained_on(Device device, Device other, bool captured) {
  manual_seed(7);
  nn::Sequential model(nn::Linear(20, 16), nn::Gelu(), nn::Linear(16, 4));
  model.to(device);
  optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
  if (captured) optimizer.publish_rates();
  const auto step = [&](const std::vector<Tensor>& in) {
    optimizer.zero_grad();
    const Tensor loss = mean(square(amp::autocast(bf16, [&] { return model(in[0]); })));
    loss.backward();
    optimizer.step();
    return loss;
  };
  CapturedStep replayed(step);
  Tensor there = ones({30}).to(other);
  Tensor loss;
  for (int i = 0; i < 5; ++i) {
    const Tensor x = randn({8, 20}).to(device);
    loss = captured ? replayed({x}) : step({x});
    there = there * 2.0;
  }
  CHECK(there.to_vector<float>() == std::vector<float>(30, 32));
  return {loss.item(), model.parameters()[0].to_vector<float>()};
}

TEST_CASE("two GPUs") {
  if (emulation::devices() < 2) return;
  const Device first = Device::cuda(0), second = Device::cuda(1);
  for (const bool captured : {false, true}) {
    CAPTURE(captured);
    const Trained there = trained_on(second, first, captured);
    CHECK(there == trained_on(first, second, captured));
    std::thread([&] { CHECK(trained_on(second, first, captured) == there); }).join();
  }
  // Inputs that go through the stream of copies, and tensors from one device to the other.
  const MemoryScope scope(MemoryUse::input);
  for (const Device device : {second, first, second}) {
    const Tensor large = randn({600, 1000});
    CHECK(large.to(device).to(first).to(second).to_vector<float>() == large.to_vector<float>());
  }
  CHECK_THROWS_AS(ones({3}).to(first) + ones({3}).to(second), Error);
  CHECK_THROWS_AS(ones({3}).to(Device::cuda(emulation::devices())), DeviceError);
}

TEST_CASE("after an illegal access an allocation reports the access, and not a lack of memory") {
  const Device gpu = Device::cuda();
  const Tensor x = ones({5}).to(gpu);
  emulation::break_device(true);
  std::string said;
  try {
    const Tensor y = empty({int64_t(40) << 20}, f32, gpu);
  } catch (const DeviceError& error) { said = error.what(); }
  emulation::break_device(false);
  CHECK(said.find("[cuda] allocating failed: ") == 0);
  CHECK(said.find("compute-sanitizer") != std::string::npos);
  CHECK((x + x).to_vector<float>() == std::vector<float>(5, 2));
}

}  // namespace

// Large inputs are copied in their own stream, at the same time as the computation. A copy never
// starts before its source is complete, never reads it after a change, and never writes to memory
// that earlier kernels still use.

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

// The gradient of a linear layer.

namespace {

TEST_CASE("under autocast the gradient of an f32 bias is summed in f32") {
  manual_seed(4);
  nn::Linear layer(24, 16);
  layer.to(Device::cuda());
  const Tensor x = randn({64, 24}).to(Device::cuda());
  const int64_t products = emulation::products_done();
  {
    const amp::Autocast autocast(bf16);
    mean(layer(x)).backward();
  }
  CHECK(emulation::products_done() - products == 2);  // forward; x needs no gradient
  CHECK(layer.bias.grad().dtype() == f32);
  for (const float g : layer.bias.grad().to_vector<float>())
    CHECK(g == doctest::Approx(1.0 / 16).epsilon(1e-2));
}

}  // namespace
}  // namespace halftone::test

// Index arithmetic and launch shapes on the host, at sizes that no test could allocate.

namespace halftone::cuda {
namespace {

constexpr int64_t huge = (int64_t(1) << 33) + 5;

TEST_CASE("a layout merges adjacent dimensions and keeps the rest in order of steps") {
  const Shape shape{2, 3, 4};
  const Layout<1> dense(shape, {contiguous_strides(shape)});
  CHECK(dense.depth == 1);
  CHECK(dense.is_dense());
  CHECK(dense.turns == 24);
  const Layout<2> broadcast(shape, {contiguous_strides(shape), Strides{0, 4, 1}});
  CHECK(broadcast.depth == 2);
  CHECK_FALSE(broadcast.is_dense());
  const Layout<1> permuted(shape, {Strides{1, 2, 6}});
  CHECK(permuted.is_dense());  // dense, in another order
  const Layout<2> differently(shape, {contiguous_strides(shape), Strides{1, 2, 6}});
  CHECK_FALSE(differently.is_dense());
  const Layout<1> scalar(Shape{}, {Strides{}}), ones(Shape{1, 1}, {Strides{7, 9}}),
      empty(Shape{3, 0}, {Strides{0, 1}});
  CHECK(scalar.turns == 1);
  CHECK(ones.is_dense());
  CHECK(empty.turns == 0);
}

TEST_CASE("every element is visited once, at the place that its strides give") {
  const Shape shape{3, 1, 5, 2};
  const Strides a{10, 10, 2, 1}, b{1, 0, 3, 15};
  const Layout<2> layout(shape, {a, b});
  std::vector<int> seen(30, 0);
  for (int64_t turn = 0; turn < layout.turns; ++turn) {
    const Places<2> at = layout.at_turn(turn, true), wide = layout.at_turn(turn, false);
    CHECK(at.of[0] == wide.of[0]);
    CHECK(at.of[1] == wide.of[1]);
    ++seen[std::size_t(at.of[0])];
    const int64_t i = at.of[0] / 10, k = at.of[0] % 10 / 2, l = at.of[0] % 2;
    CHECK(at.of[1] == i + 3 * k + 15 * l);
  }
  CHECK(seen == std::vector<int>(30, 1));
}

TEST_CASE("more than 2^31 elements are counted in 64 bits") {
  const Layout<2> layout(Shape{huge, 3}, {Strides{3, 1}, Strides{1, 0}});
  CHECK_FALSE(layout.is_small());
  CHECK(layout.turns == 3 * huge);
  const Places<2> last = layout.at_turn(layout.turns - 1, layout.is_small());
  CHECK(last.of[0] == 3 * huge - 1);
  CHECK(last.of[1] == huge - 1);
  const Layout<1> border(Shape{(int64_t(1) << 31) - 1}, {Strides{2}});
  CHECK(border.is_small());
  CHECK(border.at_turn(border.turns - 1, true).of[0] == 2 * (border.turns - 1));
}

TEST_CASE("launch shapes: at least one block, never more than the grid's limit, no overflow") {
  CHECK(blocks_for(0, 256) == 1);
  CHECK(blocks_for(1, 256) == 1);
  CHECK(blocks_for(256, 256) == 1);
  CHECK(blocks_for(257, 256) == 2);
  CHECK(blocks_for(7919, 256) == 31);
  CHECK(blocks_for(huge * 1000, 1) == 0x7fffffffu);
  CHECK(blocks_for(std::numeric_limits<int64_t>::max(), 1) == 0x7fffffffu);
  CHECK(blocks_for(huge, 256, 1000) == 1000);
}

TEST_CASE(
    "chunks of a list of tensors belong to the tensor they begin in, empty tensors have none") {
  ItemList<int, 8> list;
  const int64_t sizes[] = {0, 1, chunk_length, 0, chunk_length + 1, huge, 5};
  int item = 0;
  for (const int64_t size : sizes) list.add(item++, size);
  CHECK(list.chunks() == 0 + 1 + 1 + 0 + 2 + chunks_of(huge) + 1);
  CHECK(list.item_of(0) == 1);
  CHECK(list.item_of(1) == 2);
  CHECK(list.item_of(2) == 4);
  CHECK(list.item_of(3) == 4);
  CHECK(list.item_of(4) == 5);
  CHECK(list.item_of(list.chunks() - 2) == 5);
  CHECK(list.item_of(list.chunks() - 1) == 6);
}

}  // namespace
}  // namespace halftone::cuda
