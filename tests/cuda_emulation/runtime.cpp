// The runtime functions of the emulator: device memory, streams, events, captured graphs. All work
// is done when it is enqueued, in order, or recorded while a stream is captured.
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include <sys/mman.h>

#include <cuda_runtime.h>
#include <halftone/core/variable.h>

#include "emulator.h"
#include "fibers.h"

namespace halftone::emulation {
namespace {

constexpr std::size_t page = 4096, address_space = std::size_t(1) << 36;

/// Addresses are handed out once and never again, so that what is used after it was freed stops. A
/// page without access follows each allocation; with HALFTONE_EMULATED_CLOSED all of it is without
/// access while no kernel runs, which costs two system calls per kernel.
class DeviceMemory {
 public:
  DeviceMemory() {
    void* memory =
        mmap(nullptr, address_space, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    base_ = static_cast<std::byte*>(memory);
  }
  /// Ends at the end of its pages, but for what 16-byte alignment takes; a page without access
  /// follows.
  void* allocate(std::size_t bytes) {
    const std::size_t pages = (bytes + page - 1) / page * page;
    if (allocated_ + pages > total || used_ + pages + page > address_space) return nullptr;
    std::byte* const first = base_ + used_;
    std::byte* const data = first + (pages - (bytes + 255) / 256 * 256);
    used_ += pages + page, allocated_ += pages;
    blocks_[data] = {first, pages};
    if (!closed_ || depth_ > 0) mprotect(first, pages, PROT_READ | PROT_WRITE);
    return data;
  }
  bool release(void* data) {
    const auto found = blocks_.find(static_cast<std::byte*>(data));
    if (found == blocks_.end()) return false;
    allocated_ -= found->second.bytes;
    mmap(found->second.first, found->second.bytes, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    blocks_.erase(found);
    return true;
  }
  void open() {
    if (depth_++ == 0) protect(PROT_READ | PROT_WRITE);
  }
  void close() {
    if (--depth_ == 0) protect(PROT_NONE);
  }
  std::size_t allocated() const { return allocated_; }
  std::size_t total = std::size_t(8) << 30;

 private:
  struct Pages {
    std::byte* first;
    std::size_t bytes;
  };
  void protect(int access) const {
    if (closed_ && used_ > 0) mprotect(base_, used_, access);
  }

  std::byte* base_ = nullptr;
  std::size_t used_ = 0, allocated_ = 0;
  int depth_ = 0;
  /// Without access for the host; then pages between allocations are open while a kernel runs.
  const bool closed_ = halftone::environment_variable("HALFTONE_EMULATED_CLOSED") != nullptr;
  std::map<std::byte*, Pages> blocks_;
};

using Work = std::function<void()>;

struct Machine {
  std::recursive_mutex mutex;
  DeviceMemory memory;
  int64_t waits = 0, launches = 0;
  std::unique_ptr<std::vector<Work>> captured;  // while a stream is captured
  cudaError_t last_error = cudaSuccess;
  int major = 9, minor = 0;  // compute capability
};
Machine& machine() {
  static Machine* instance = new Machine;
  return *instance;
}
using Lock = std::lock_guard<std::recursive_mutex>;

cudaError_t failed(cudaError_t error) { return machine().last_error = error; }

cudaError_t perform(Work work) {
  Machine& m = machine();
  if (m.captured) {
    m.captured->push_back(std::move(work));
  } else {
    const DeviceAccess access;
    work();
  }
  return cudaSuccess;
}

}  // namespace

DeviceAccess::DeviceAccess() {
  machine().mutex.lock();
  machine().memory.open();
}
DeviceAccess::~DeviceAccess() {
  machine().memory.close();
  machine().mutex.unlock();
}

int64_t host_waits() { return machine().waits; }
int64_t kernel_launches() { return machine().launches; }
void set_compute_capability(int major, int minor) {
  machine().major = major, machine().minor = minor;
}
void set_total_memory(std::size_t bytes) { machine().memory.total = bytes; }
std::size_t allocated_bytes() { return machine().memory.allocated(); }

cudaError_t launch(const cudaLaunchConfig_t& config, std::function<void()> thread) {
  const Lock lock(machine().mutex);
  const dim3 grid = config.gridDim, threads = config.blockDim;
  if (grid.x < 1 || grid.y < 1 || grid.z < 1 || grid.y > 65535 || grid.z > 65535 ||
      threads.x * threads.y * threads.z > 1024 || threads.x < 1)
    return failed(cudaErrorInvalidValue);
  ++machine().launches;
  return perform([=, thread = std::move(thread)] { run_grid(grid, threads, thread); });
}

void enqueue(void* /*stream*/, void (*work)(void*), void* argument, void (*destroy)(void*)) {
  const Lock lock(machine().mutex);
  const std::shared_ptr<void> owned(argument, destroy);
  perform([=] { work(owned.get()); });
}

}  // namespace halftone::emulation

using namespace halftone::emulation;

struct CUgraph_st {
  std::vector<Work> work;
};
struct CUgraphExec_st {
  std::vector<Work> work;
};

const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaError";
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : "an error of the emulated GPU";
}
cudaError_t cudaGetLastError() { return std::exchange(machine().last_error, cudaSuccess); }
cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int device) {
  return device == 0 ? cudaSuccess : failed(cudaErrorInvalidDevice);
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  *p = {"emulated GPU", machine().memory.total, machine().major, machine().minor, 4};
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  const Lock lock(machine().mutex);
  *total = machine().memory.total;
  *free = *total - machine().memory.allocated();
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** at, std::size_t bytes) {
  const Lock lock(machine().mutex);
  *at = machine().memory.allocate(std::max<std::size_t>(bytes, 1));
  return *at ? cudaSuccess : failed(cudaErrorMemoryAllocation);
}
cudaError_t cudaFree(void* data) {
  const Lock lock(machine().mutex);
  return !data || machine().memory.release(data) ? cudaSuccess : failed(cudaErrorInvalidValue);
}
cudaError_t cudaHostAlloc(void** at, std::size_t bytes, unsigned) {
  *at = std::malloc(bytes);
  return *at ? cudaSuccess : failed(cudaErrorMemoryAllocation);
}
cudaError_t cudaFreeHost(void* data) { return std::free(data), cudaSuccess; }
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t) {
  const Lock lock(machine().mutex);
  return perform([=] { std::memcpy(to, from, bytes); });
}
cudaError_t cudaMemsetAsync(void* data, int value, std::size_t bytes, cudaStream_t) {
  const Lock lock(machine().mutex);
  return perform([=] { std::memset(data, value, bytes); });
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = reinterpret_cast<cudaStream_t>(1);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) {
  const Lock lock(machine().mutex);
  if (machine().captured) return failed(cudaErrorStreamCaptureUnsupported);
  ++machine().waits;
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  const Lock lock(machine().mutex);
  if (machine().captured) return failed(cudaErrorStreamCaptureUnsupported);
  machine().captured = std::make_unique<std::vector<Work>>();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  const Lock lock(machine().mutex);
  if (!machine().captured) return failed(cudaErrorInvalidValue);
  *graph = new CUgraph_st{std::move(*machine().captured)};
  machine().captured.reset();
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long) {
  *executable = new CUgraphExec_st{graph->work};
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete graph, cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) { return delete graph, cudaSuccess; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t) {
  const DeviceAccess access;
  for (const Work& work : graph->work) work();
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = reinterpret_cast<cudaEvent_t>(1);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return ++machine().waits, cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  return *milliseconds = 0, cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
