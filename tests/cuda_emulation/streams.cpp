// Streams, events and captured graphs of the emulated GPU. All work is done when it is enqueued, in
// order, or recorded while its stream is captured. Deferred work waits in the queue of its stream,
// as with a slow device.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <memory>
#include <thread>
#include <utility>

#include <cuda_runtime.h>

#include "machine.h"

using namespace halftone::emulation;

struct CUstream_st {
  struct Entry {
    Work work;
    std::function<bool()> ready{};  // none: always
  };
  std::deque<Entry> queue;
  uint64_t enqueued = 0, done = 0;
  std::unique_ptr<std::vector<Work>> captured{};  // while it is captured
  int device = current_device();
};
struct CUevent_st {
  cudaStream_t stream = nullptr;  // null: not recorded yet
  uint64_t after = 0;             // complete when the stream has done this much work
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
  CUstream_st legacy;  // the stream that null names
  std::vector<cudaStream_t> all{&legacy};
  uint64_t seed = number_from("HALFTONE_EMULATED_DEFERRED");
};
Streams& streams() {
  static Streams* instance = new Streams;
  return *instance;
}

/// Returns the next of a sequence of numbers (Steele et al. 2014, SplitMix).
uint64_t random_number() {
  uint64_t z = streams().seed += 0x9e3779b97f4a7c15;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return z ^ z >> 31;
}

cudaStream_t stream_of(cudaStream_t stream) { return stream ? stream : &streams().legacy; }

/// Returns whether `count` pieces are done afterwards: some may wait for others. Work may not
/// enqueue, but may ask what is done.
bool run_until(cudaStream_t stream, uint64_t count) {
  if (stream->done >= count) return true;
  const DeviceAccess access;
  while (stream->done < count) {
    if (stream->queue.front().ready && !stream->queue.front().ready()) return false;
    const Work work = std::move(stream->queue.front().work);
    stream->queue.pop_front();
    work();
    ++stream->done;
  }
  return true;
}

void run_some() {
  if (random_number() % 16 != 0) return;
  const std::vector<cudaStream_t>& all = streams().all;
  cudaStream_t const stream = all[random_number() % all.size()];
  if (!stream->queue.empty())
    run_until(stream, stream->done + 1 + random_number() % stream->queue.size());
}

void queue(cudaStream_t stream, CUstream_st::Entry entry) {
  stream->queue.push_back(std::move(entry)), ++stream->enqueued;
  if (deferred()) run_some();
  else run_until(stream, stream->enqueued);
}

/// The error that work found.
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
  queue(stream, {std::move(work)});
  return cudaSuccess;
}

bool run_all() {
  bool all = true;
  for (cudaStream_t stream : streams().all) all = run_until(stream, stream->enqueued) && all;
  return all;
}

void nap(std::unique_lock<std::recursive_mutex>& lock) {
  lock.unlock();
  std::this_thread::sleep_for(std::chrono::microseconds(50));
  lock.lock();
}

void set_deferred(uint64_t seed) {
  std::unique_lock lock(machine().mutex);
  streams().seed = seed;
  while (seed == 0 && !run_all()) nap(lock);
}
bool deferred() { return streams().seed != 0; }
bool uses_cudnn() { return false; }
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

cudaError_t launch_work(const cudaLaunchConfig_t& config, Work grid_of_threads) {
  const Lock lock(machine().mutex);
  const dim3 grid = config.gridDim, threads = config.blockDim;
  if (grid.x < 1 || grid.y < 1 || grid.z < 1 || grid.y > 65535 || grid.z > 65535 ||
      threads.x * threads.y * threads.z > 1024 || threads.x < 1)
    return failed(cudaErrorInvalidValue);
  if (machine().broken) return failed(cudaErrorIllegalAddress);
  if (stream_of(config.stream)->device != current_device()) return failed(cudaErrorInvalidValue);
  ++machine().launches;
  return perform(config.stream, std::move(grid_of_threads));
}

void enqueue(void* stream, void (*work)(void*), void* argument, void (*destroy)(void*)) {
  const Lock lock(machine().mutex);
  const std::shared_ptr<void> owned(argument, destroy);
  perform(static_cast<cudaStream_t>(stream), [=] { work(owned.get()); });
}

void enqueue_wait(void* stream, bool (*ready)(void*), void* argument, void (*destroy)(void*)) {
  const Lock lock(machine().mutex);
  const std::shared_ptr<void> owned(argument, destroy);
  queue(stream_of(static_cast<cudaStream_t>(stream)), {[] {}, [=] { return ready(owned.get()); }});
}

void work_by_itself() {
  const Lock lock(machine().mutex);
  if (deferred()) run_some();
  else run_all();
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
  std::unique_lock lock(machine().mutex);
  while (!run_until(stream, stream->enqueued)) nap(lock);
  std::erase(streams().all, stream);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t named) {
  std::unique_lock lock(machine().mutex);
  cudaStream_t const stream = stream_of(named);
  if (stream->captured) return failed(cudaErrorStreamCaptureUnsupported);
  ++machine().waits;
  while (!run_until(stream, stream->enqueued)) nap(lock);
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
cudaError_t cudaStreamWaitEvent(cudaStream_t named, cudaEvent_t event, unsigned) {
  const Lock lock(machine().mutex);
  cudaStream_t const stream = stream_of(named);
  if (!event->stream) return cudaSuccess;
  const auto ready = [on = event->stream, count = event->after] { return run_until(on, count); };
  if (stream->captured) return perform(stream, [ready] { ready(); });
  queue(stream, {[] {}, ready});
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  std::unique_lock lock(machine().mutex);
  ++machine().waits;
  while (event->stream && !run_until(event->stream, event->after)) nap(lock);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const Lock lock(machine().mutex);
  if (event->stream && !deferred()) run_until(event->stream, event->after);
  const bool ready = !event->stream || event->stream->done >= event->after;
  return ready ? cudaSuccess : failed(cudaErrorNotReady);
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  return *milliseconds = 0, cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete event, cudaSuccess; }
