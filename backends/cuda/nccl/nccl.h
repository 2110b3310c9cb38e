// NCCL for the list of engines: messages between GPUs, one per rank, without the host.
#pragma once

#include <memory>
#include <string>

#include <halftone/core/communicator.h>

namespace halftone {

/// Returns whether this build has NCCL and finds its library.
bool nccl_present();
/// Returns "2.28.9", or why it is missing and what to do.
std::string nccl_description();
/// Starts NCCL on this rank's GPU among the ranks of `host`, which transfers all other messages.
/// Collective; call it once. Returns null on all ranks if one of them has no NCCL, or shares its
/// GPU with another; rank 0 prints the reason.
std::unique_ptr<Communicator> start_nccl(Communicator& host, Device device);

}  // namespace halftone
