// A GPU of one thread: kernels run block after block, and the threads of a block as fibers that
// hand over at barriers and warp exchanges. What it is for: every kernel of backends/cuda runs in
// the tests of machines without a GPU, with the bounds of every allocation, barriers that not all
// threads reach, and races that depend on the order of threads made visible. What it cannot show:
// memory ordering between blocks, speed, and what the libraries (cuBLASLt, cuDNN) do.
//
// A page without access follows every allocation of device memory, so that a kernel that leaves one
// stops there (with HALFTONE_CUDA_CACHE=off, where allocations are exact). Switches that make it
// harder than hardware, as environment variables for a whole program and as functions for a test:
//
//   HALFTONE_EMULATED_CLOSED=1        the host has no access to device memory while no kernel runs
//   HALFTONE_EMULATED_DEFERRED=seed   work waits in its stream: set_deferred()
//   HALFTONE_EMULATED_POISON=1        new memory and, around replays, free memory: set_poison()
//   HALFTONE_EMULATED_BLOCK_ORDER=seed, HALFTONE_EMULATED_MULTIPROCESSORS=n
//   HALFTONE_EMULATED_DEVICES=n       so many GPUs: work in a stream of a device that is not the
//                                     calling thread's is refused
//   HALFTONE_EMULATED_BUS=name        where the GPU is; without it each process has its own
#pragma once

#include <cstddef>
#include <cstdint>

namespace halftone::emulation {

/// The order in which the threads of a block run between two barriers. A kernel without races gives
/// the same result under all of them.
enum class ThreadOrder { ascending, descending, shuffled };
void set_thread_order(ThreadOrder order);
/// Blocks run in an order of that number's choice; 0: ascending.
void set_block_order(uint64_t seed);
/// What contexts that are opened from here on see.
void set_multiprocessors(int count);

/// How many GPUs there are.
int devices();
/// From here on the device answers as after a kernel that read outside of its memory: cudaMalloc
/// and launches say so, whatever they are asked.
void break_device(bool broken);

/// How often the host waited for the device, or read from it, so far.
int64_t host_waits();
int64_t kernel_launches();

/// With a seed that is not 0 work is queued: kernels, copies in both directions, and replays run
/// when the host waits, when device memory is freed, or at moments that the seed chooses, each
/// stream for itself. Until then events are not ready, and copies have not read their source. 0:
/// work is done when it is enqueued.
void set_deferred(uint64_t seed);
bool deferred();
/// Work that was enqueued and has not run.
std::size_t pending_work();
/// Work that was ever enqueued: kernels, copies, waits of one stream for another.
std::size_t enqueued_work();

/// What cudaMalloc hands out is full of NaNs. So is, before each replay of a captured graph, what
/// nobody has of the memory outside of such graphs; and a replay that wrote there (another tensor
/// might have had it) is an error at the next wait.
/// Returns whether it was on.
bool set_poison(bool on);
/// Replays that did, so far.
int64_t replays_outside();

/// Device memory that the emulated GPU has; smaller to see an allocation fail.
void set_total_memory(std::size_t bytes);
/// After so many more calls of cudaMalloc, so many fail.
void fail_allocations(int64_t after, int64_t failures);
/// Calls of cudaMalloc so far.
int64_t allocations();
/// What the device says it is: 90 for Hopper.
void set_compute_capability(int major, int minor);
/// The CUDA version that the driver is for, as 1000 major + 10 minor. Below 13000, that of the
/// runtime, it finds no devices.
void set_driver_version(int version);
/// Bytes handed out by cudaMalloc and not freed.
std::size_t allocated_bytes();

/// The next `count` calls of cublasLtMatmul are refused with this status, before anything is done.
void refuse_products(int status, int64_t count);
/// Of the three algorithms that its heuristic proposes, the first so many are refused with
/// NOT_SUPPORTED.
void refuse_algorithms(int count);
/// Calls of cublasLtMatmul that were done, and that were refused, so far.
int64_t products_done();
int64_t products_refused();

/// While one lives, the host may read and write device memory: for stand-ins of libraries.
class DeviceAccess {
 public:
  DeviceAccess();
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};

/// Runs work that a library enqueues on a stream, or records it while that is captured.
void enqueue(void* stream, void (*work)(void*), void* argument, void (*destroy)(void*));
/// The stream goes no further until `ready` says so, which others make true; the host may go on.
/// Not while it is captured.
void enqueue_wait(void* stream, bool (*ready)(void*), void* argument, void (*destroy)(void*));
/// A GPU that is deferred works by itself now and then, as a real one does: a step of that.
void work_by_itself();

}  // namespace halftone::emulation
