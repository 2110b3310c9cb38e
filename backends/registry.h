// For tests: replaces the CPU's backend by a test's own, to see what the upper layers ask of it.
#pragma once

#include <memory>
#include <string>

#include <halftone/core/backend.h>
#include <halftone/core/communicator.h>

namespace halftone {

/// Makes `backend` serve CPU tensors in all threads until the scope ends.
class CpuBackendReplacement {
 public:
  explicit CpuBackendReplacement(Backend& backend);
  ~CpuBackendReplacement();
  CpuBackendReplacement(const CpuBackendReplacement&) = delete;
  CpuBackendReplacement& operator=(const CpuBackendReplacement&) = delete;

 private:
  Backend* before_;
};

// MPI for the list of engines: a communicator if this build has MPI, or the reason why not.

/// Returns whether this build has MPI and its library can be opened.
bool mpi_present();
/// Returns "Open MPI v4.1.4", or a text about what is missing.
std::string mpi_description();
/// Starts MPI, in its own thread, for `launched` processes; call it once. Throws UsageError if MPI
/// cannot be opened, or if it sees another number of processes: then another MPI's launcher started
/// this program.
std::unique_ptr<Communicator> start_mpi(int launched);

// NCCL for the list of engines: messages between GPUs, one per rank, without the host.

/// Returns whether this build has NCCL and finds its library.
bool nccl_present();
/// Returns "2.28.9", or why it is missing and what to do.
std::string nccl_description();
/// Starts NCCL on this rank's GPU among the ranks of `host`, which transfers all other messages.
/// Collective; call it once. Returns null on all ranks if one of them has no NCCL, or shares its
/// GPU with another; rank 0 prints the reason.
std::unique_ptr<Communicator> start_nccl(Communicator& host, Device device);

// The entry to the CUDA backend: builds without it use absent.cpp, which returns null.

/// Returns the backend of that GPU, or null if this build or this machine has none.
Backend* cuda_backend(int index);
/// Returns what the backend runs on, or why it is missing and what to do.
std::string cuda_description();
/// Returns a description of the kernels and libraries of that GPU, which must exist.
std::string cuda_kernels(int index);

}  // namespace halftone
