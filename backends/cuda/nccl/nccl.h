// What the list of engines knows of NCCL: messages between GPUs, one a rank, that no host touches.
#pragma once

#include <memory>
#include <string>

#include <halftone/core/communicator.h>

namespace halftone {

/// Whether this build has NCCL and finds its library.
bool nccl_present();
/// "2.28.9", or why there is none and what to do.
std::string nccl_description();
/// Starts NCCL on this rank's GPU among the ranks of `host`, which carries what NCCL is not asked
/// for. Collective, once. Null, on all ranks, where one of them has no NCCL, or has its GPU
/// together with another; rank 0 says so.
std::unique_ptr<Communicator> start_nccl(Communicator& host, Device device);

}  // namespace halftone
