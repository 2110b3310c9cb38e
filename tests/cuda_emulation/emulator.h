// A GPU of one thread. Kernels run block after block, and the threads of a block are fibers that
// switch at barriers and warp exchanges. On a machine without a GPU, tests run every kernel of
// backends/cuda here. They find accesses out of bounds, barriers that some threads never reach, and
// races that depend on the order of threads. They do not show memory ordering between blocks,
// speed, or what the libraries (cuBLASLt, cuDNN) do.
//
// A page without access follows every allocation of device memory, so that a kernel that leaves an
// allocation faults (with HALFTONE_CUDA_CACHE=off, where allocations are exact). These switches
// make it stricter than hardware; each is an environment variable for a program and a function for
// a test:
//
//   HALFTONE_EMULATED_CLOSED=1        the host has no access to device memory while no kernel runs
//   HALFTONE_EMULATED_DEFERRED=seed   work waits in its stream: set_deferred()
//   HALFTONE_EMULATED_POISON=1        new memory and, around replays, free memory: set_poison()
//   HALFTONE_EMULATED_BLOCK_ORDER=seed, HALFTONE_EMULATED_MULTIPROCESSORS=n
//   HALFTONE_EMULATED_DEVICES=n       n GPUs: work in a stream of a device that is not the
//                                     calling thread's is refused
//   HALFTONE_EMULATED_CAPABILITY=100  the GPU is of sm_100; default: of sm_90
//   HALFTONE_EMULATED_BUS=name        identifies the GPU; without it each process has its own
#pragma once

#include <cstddef>
#include <cstdint>

namespace halftone::emulation {

/// The order in which the threads of a block run between two barriers. A kernel without races gives
/// the same result in every order.
enum class ThreadOrder { ascending, descending, shuffled };
void set_thread_order(ThreadOrder order);
/// Sets the order of blocks, by a seed; 0: ascending.
void set_block_order(uint64_t seed);
/// Sets the number of multiprocessors that contexts see if they are opened later.
void set_multiprocessors(int count);

/// Sets the number of GPUs.
int devices();
/// From now on the device answers as after a kernel that read outside of its memory: cudaMalloc and
/// launches always return that error.
void break_device(bool broken);

/// Returns how often the host has waited for the device, or read from it.
int64_t host_waits();
int64_t kernel_launches();

/// With a seed that is not 0, work is queued. Kernels, copies in both directions and replays run
/// when the host waits, when device memory is freed, or at moments that the seed chooses,
/// separately in each stream. Before they run, events are not ready and copies have not read their
/// source. 0: work is done when it is enqueued.
void set_deferred(uint64_t seed);
bool deferred();
/// Returns whether convolutions may go to cuDNN: only on a real GPU.
bool uses_cudnn();
/// Returns the number of enqueued pieces of work that have not run.
std::size_t pending_work();
/// Returns the number of all enqueued pieces of work: kernels, copies, waits between streams.
std::size_t enqueued_work();

/// Fills memory from cudaMalloc with NaNs. Before each replay of a captured graph, fills the free
/// memory outside of such graphs as well. A replay that wrote there (another tensor might have had
/// the memory) is an error at the next wait.
/// Returns whether it was on.
bool set_poison(bool on);
/// Returns the number of replays that wrote to free memory.
int64_t replays_outside();

/// Sets the size of the device memory of the emulated GPU, so that an allocation can fail.
void set_total_memory(std::size_t bytes);
/// Lets the next `after` calls of cudaMalloc succeed and the `failures` calls after them fail.
void fail_allocations(int64_t after, int64_t failures);
/// Returns the number of calls of cudaMalloc.
int64_t allocations();
/// Sets the compute capability of the device: 90 for Hopper.
void set_compute_capability(int major, int minor);
/// Returns 90 for 9.0.
int compute_capability();
/// Sets the CUDA version of the driver, as 1000 major + 10 minor. Below 13000, which is the version
/// of the runtime, it finds no devices.
void set_driver_version(int version);
/// Returns the bytes of cudaMalloc that are not freed.
std::size_t allocated_bytes();

/// Refuses the next `count` calls of cublasLtMatmul with this status, before they do anything.
void refuse_products(int status, int64_t count);
/// Refuses the first `count` of the three algorithms that the heuristic proposes, with
/// NOT_SUPPORTED.
void refuse_algorithms(int count);
/// Returns the calls of cublasLtMatmul that were done, and those that were refused.
int64_t products_done();
int64_t products_refused();

/// While an object lives, the host may read and write device memory: for substitutes of libraries.
class DeviceAccess {
 public:
  DeviceAccess();
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};

/// Runs work that a library enqueues on a stream, or records it while the stream is captured.
void enqueue(void* stream, void (*work)(void*), void* argument, void (*destroy)(void*));
/// The stream waits until `ready` returns true, which other work makes true; the host does not
/// wait. Not allowed while the stream is captured.
void enqueue_wait(void* stream, bool (*ready)(void*), void* argument, void (*destroy)(void*));
/// Lets a deferred GPU do a step of its work, as a real GPU works at any time.
void work_by_itself();

}  // namespace halftone::emulation
