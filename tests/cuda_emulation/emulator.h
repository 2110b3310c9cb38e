// A GPU of one thread: kernels run block after block, and the threads of a block as fibers that
// hand over at barriers and warp exchanges. What it is for: every kernel of backends/cuda runs in
// the tests of machines without a GPU, with the bounds of every allocation, barriers that not all
// threads reach, and races that depend on the order of threads made visible. What it cannot show:
// memory ordering between blocks, speed, and what the libraries (cuBLASLt, cuDNN) do.
//
// A page without access follows every allocation of device memory, so that a kernel that leaves one
// stops there (with HALFTONE_CUDA_CACHE=off, where allocations are exact). With
// HALFTONE_EMULATED_CLOSED set, the host has no access to any of it while no kernel runs: host code
// that follows a device pointer stops at once.
#pragma once

#include <cstdint>

namespace halftone::emulation {

/// The order in which the threads of a block run between two barriers. A kernel without races gives
/// the same result under all of them.
enum class ThreadOrder { ascending, descending, shuffled };
void set_thread_order(ThreadOrder order);

/// How often the host waited for the device, or read from it, so far.
int64_t host_waits();
int64_t kernel_launches();

/// Device memory that the emulated GPU has; smaller to see an allocation fail.
void set_total_memory(std::size_t bytes);
/// What the device says it is: 90 for Hopper.
void set_compute_capability(int major, int minor);
/// Bytes handed out by cudaMalloc and not freed.
std::size_t allocated_bytes();

/// While one lives, the host may read and write device memory: for stand-ins of libraries.
class DeviceAccess {
 public:
  DeviceAccess();
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};

/// Runs work that a library enqueues on a stream: at once, or recorded while it is captured.
void enqueue(void* stream, void (*work)(void*), void* argument, void (*destroy)(void*));

}  // namespace halftone::emulation
