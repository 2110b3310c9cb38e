// The state of the emulated GPU, protected by one lock. runtime.cpp (devices, memory) and
// streams.cpp (streams, events, graphs) share it. fibers.cpp runs the threads of kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <vector>

#include <cuda_runtime.h>

#include "emulator.h"

namespace halftone::emulation {

using Work = std::function<void()>;

/// The memory of the emulated GPU: a range of addresses, from which allocations are made. Each
/// address is allocated once only, so that a use after free faults. A page without access
/// follows each allocation. With HALFTONE_EMULATED_CLOSED all pages are without access while no
/// kernel runs, which costs two system calls per kernel.
class DeviceMemory {
 public:
  DeviceMemory();
  /// Returns memory whose end is the end of its last page, rounded down to 256-byte alignment; a
  /// page without access follows. Null if the memory is exhausted.
  void* allocate(std::size_t bytes);
  /// Returns false if `data` was not allocated.
  bool release(void* data);
  void open();
  void close();
  std::size_t allocated() const { return allocated_; }
  struct Allocation {
    const std::byte* data = nullptr;
    std::size_t bytes = 0;
  };
  /// Returns the allocation that contains this address, or the nearest before it; empty if none
  /// does.
  Allocation allocation_at(const void* address) const;
  std::size_t total = std::size_t(8) << 30;

 private:
  struct Pages {
    std::byte* first;
    std::size_t bytes, asked;
  };
  void protect(int access) const;

  std::byte* base_ = nullptr;
  std::size_t used_ = 0, allocated_ = 0;
  int depth_ = 0;
  /// Closes the memory for the host. Then pages between allocations are open while a kernel runs.
  const bool closed_;
  std::map<std::byte*, Pages> blocks_;
};

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

/// Poisoned memory.
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

/// Runs `thread` for every thread of every block, in the order of set_thread_order().
void run_grid(dim3 grid, dim3 threads, const std::function<void()>& thread);

/// In a thread of a kernel: lets other threads do `turns` waits first. Elsewhere it does
/// nothing.
void hand_over(int turns);

/// Returns the n-th block to run: a permutation whose step and start the seed chooses. 0:
/// ascending.
inline uint64_t block_in_order(uint64_t n, uint64_t blocks, uint64_t seed) {
  if (seed == 0) return n;
  uint64_t step = seed % blocks + blocks / 3 + 1;
  while (std::gcd(step, blocks) != 1) ++step;
  return (n % blocks * (step % blocks) + seed) % blocks;
}

}  // namespace halftone::emulation
