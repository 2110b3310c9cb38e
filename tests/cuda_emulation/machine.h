// The state of the emulated GPU, protected by one lock. runtime.cpp (devices, memory), streams.cpp
// (streams, events, graphs) and device_memory.cpp share it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include <cuda_runtime.h>

#include "device_memory.h"
#include "emulator.h"

namespace halftone::emulation {

using Work = std::function<void()>;

struct Machine {
  std::recursive_mutex mutex;
  DeviceMemory memory;
  int64_t waits = 0, launches = 0;
  cudaError_t last_error = cudaSuccess;
  cudaError_t found = cudaSuccess;  // an error of work that ran, for the next wait
  int major = 9, minor = 0;         // compute capability
  int driver = 13000, multiprocessors = 4, devices = 1;
  bool broken = false;  // after a kernel that left its memory: every call fails
  int64_t allocations = 0, good_allocations = 0, bad_allocations = 0;
};
Machine& machine();
using Lock = std::lock_guard<std::recursive_mutex>;

/// Stores an error for cudaGetLastError, and returns it.
cudaError_t failed(cudaError_t error);
/// Does the work, queues it, or records it while the stream is captured. The caller has the lock.
cudaError_t perform(cudaStream_t stream, Work work);
/// Checks the shape of a launch, and enqueues `work`, which runs its threads.
cudaError_t launch_work(const cudaLaunchConfig_t& config, Work grid_of_threads);
/// Does all work of all streams; false if some waits for other work (enqueue_wait). With the lock.
bool run_all();
/// Lets the other work run. The caller holds no other lock.
void nap(std::unique_lock<std::recursive_mutex>& lock);

/// The device of the calling thread. Some calls require a stream or an event of this device.
int current_device();

/// Returns a number from an environment variable; 0 if it is not set.
uint64_t number_from(const char* variable);

/// Poisoned memory: device_memory.cpp.
bool poisoned();
void poison(void* data, std::size_t bytes);
struct FreeBlock {
  void* data;
  std::size_t bytes;
};
/// Returns the free memory outside of captured graphs. To be called without the lock: the cache of
/// the backend has its own.
std::vector<FreeBlock> free_blocks();
/// A replay, between filling these blocks and checking them.
void replay_poisoned(const std::vector<FreeBlock>& blocks, const std::vector<Work>& replay);

}  // namespace halftone::emulation
