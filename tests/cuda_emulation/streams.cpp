// Streams, events and captured graphs of the emulated GPU. All work is done when it is enqueued,
// in order, or recorded while its stream is captured; deferred, it waits in the queue of its stream
// as it would behind a slow device.
#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>

#include <cuda_runtime.h>

#include "fibers.h"
#include "machine.h"

using namespace halftone::emulation;

struct CUstream_st {
  std::deque<Work> queue;
  uint64_t enqueued = 0, done = 0;
  std::unique_ptr<std::vector<Work>> captured{};  // while it is
  int device = current_device();
};
struct CUevent_st {
  cudaStream_t stream = nullptr;  // null: not recorded yet
  uint64_t after = 0;             // complete when so much of the stream's work is done
  int device = current_device();
};
struct CUgraph_st {
  std::shared_ptr<const std::vector<Work>> work;
};
struct CUgraphExec_st {
  std::shared_ptr<const std::vector<Work>> work;
};

namespace halftone::emulation {

namespace {

struct Streams {
  CUstream_st legacy;  // the one that null names
  std::vector<cudaStream_t> all{&legacy};
  uint64_t seed = number_from("HALFTONE_EMULATED_DEFERRED");
};
Streams& streams() {
  static Streams* instance = new Streams;
  return *instance;
}

/// The next of a sequence of numbers (Steele et al. 2014, SplitMix).
uint64_t random_number() {
  uint64_t z = streams().seed += 0x9e3779b97f4a7c15;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return z ^ z >> 31;
}

cudaStream_t stream_of(cudaStream_t stream) { return stream ? stream : &streams().legacy; }

/// Work may enqueue nothing, but may ask what is done.
void run_until(cudaStream_t stream, uint64_t count) {
  if (stream->done >= count) return;
  const DeviceAccess access;
  while (stream->done < count) {
    const Work work = std::move(stream->queue.front());
    stream->queue.pop_front();
    work();
    ++stream->done;
  }
}

void run_some() {
  if (random_number() % 16 != 0) return;
  const std::vector<cudaStream_t>& all = streams().all;
  cudaStream_t const stream = all[random_number() % all.size()];
  if (!stream->queue.empty())
    run_until(stream, stream->done + 1 + random_number() % stream->queue.size());
}

/// What work found to be wrong.
cudaError_t finding() {
  const cudaError_t found = std::exchange(machine().found, cudaSuccess);
  return found == cudaSuccess ? found : failed(found);
}

}  // namespace

cudaError_t perform(cudaStream_t named, Work work) {
  cudaStream_t const stream = stream_of(named);
  if (stream->captured) {
    stream->captured->push_back(std::move(work));
    return cudaSuccess;
  }
  stream->queue.push_back(std::move(work)), ++stream->enqueued;
  if (deferred()) run_some();
  else run_until(stream, stream->enqueued);
  return cudaSuccess;
}

void run_all() {
  for (cudaStream_t stream : streams().all) run_until(stream, stream->enqueued);
}

void set_deferred(uint64_t seed) {
  const Lock lock(machine().mutex);
  streams().seed = seed;
  if (seed == 0) run_all();
}
bool deferred() { return streams().seed != 0; }
std::size_t pending_work() {
  const Lock lock(machine().mutex);
  std::size_t pending = 0;
  for (cudaStream_t stream : streams().all) pending += stream->queue.size();
  return pending;
}

std::size_t enqueued_work() {
  const Lock lock(machine().mutex);
  std::size_t enqueued = 0;
  for (cudaStream_t stream : streams().all) enqueued += stream->enqueued;
  return enqueued;
}

cudaError_t launch(const cudaLaunchConfig_t& config, std::function<void()> thread) {
  const Lock lock(machine().mutex);
  const dim3 grid = config.gridDim, threads = config.blockDim;
  if (grid.x < 1 || grid.y < 1 || grid.z < 1 || grid.y > 65535 || grid.z > 65535 ||
      threads.x * threads.y * threads.z > 1024 || threads.x < 1)
    return failed(cudaErrorInvalidValue);
  if (machine().broken) return failed(cudaErrorIllegalAddress);
  if (stream_of(config.stream)->device != current_device()) return failed(cudaErrorInvalidValue);
  ++machine().launches;
  return perform(config.stream,
                 [=, thread = std::move(thread)] { run_grid(grid, threads, thread); });
}

void enqueue(void* stream, void (*work)(void*), void* argument, void (*destroy)(void*)) {
  const Lock lock(machine().mutex);
  const std::shared_ptr<void> owned(argument, destroy);
  perform(static_cast<cudaStream_t>(stream), [=] { work(owned.get()); });
}

}  // namespace halftone::emulation

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  const Lock lock(machine().mutex);
  return perform(stream, [=] { std::memcpy(to, from, bytes); });
}
cudaError_t cudaMemsetAsync(void* data, int value, std::size_t bytes, cudaStream_t stream) {
  const Lock lock(machine().mutex);
  return perform(stream, [=] { std::memset(data, value, bytes); });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  const Lock lock(machine().mutex);
  streams().all.push_back(*stream = new CUstream_st);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Lock lock(machine().mutex);
  run_until(stream, stream->enqueued);
  std::erase(streams().all, stream);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t named) {
  const Lock lock(machine().mutex);
  cudaStream_t const stream = stream_of(named);
  if (stream->captured) return failed(cudaErrorStreamCaptureUnsupported);
  ++machine().waits;
  run_until(stream, stream->enqueued);
  return finding();
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  const Lock lock(machine().mutex);
  if (stream->captured) return failed(cudaErrorStreamCaptureUnsupported);
  stream->captured = std::make_unique<std::vector<Work>>();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const Lock lock(machine().mutex);
  if (!stream->captured) return failed(cudaErrorInvalidValue);
  *graph = new CUgraph_st{std::move(stream->captured)};
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long) {
  *executable = new CUgraphExec_st{graph->work};
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete graph, cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) { return delete graph, cudaSuccess; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  // A graph may be destroyed while it runs.
  std::shared_ptr<const std::vector<Work>> work = graph->work;
  std::vector<FreeBlock> blocks = poisoned() ? free_blocks() : std::vector<FreeBlock>{};
  const Lock lock(machine().mutex);
  return perform(stream, [work = std::move(work), blocks = std::move(blocks)] {
    replay_poisoned(blocks, *work);
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return *event = new CUevent_st, cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t named) {
  const Lock lock(machine().mutex);
  cudaStream_t const stream = stream_of(named);
  if (event->device != stream->device) return failed(cudaErrorInvalidValue);
  event->stream = stream, event->after = stream->enqueued;
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const Lock lock(machine().mutex);
  if (!event->stream) return cudaSuccess;
  return perform(stream, [on = event->stream, count = event->after] { run_until(on, count); });
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const Lock lock(machine().mutex);
  ++machine().waits;
  if (event->stream) run_until(event->stream, event->after);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const Lock lock(machine().mutex);
  const bool ready = !event->stream || event->stream->done >= event->after;
  return ready ? cudaSuccess : failed(cudaErrorNotReady);
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  return *milliseconds = 0, cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete event, cudaSuccess; }
