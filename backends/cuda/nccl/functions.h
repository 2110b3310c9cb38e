// The NCCL functions that halftone uses, looked up when several processes train on GPUs: a fifth of
// a gigabyte that other programs do not open.
#pragma once

#include <string>

#include <nccl.h>

namespace halftone::cuda::nccl {

struct Functions {
  decltype(&ncclGetVersion) version;
  decltype(&ncclGetErrorString) error_text;
  decltype(&ncclGetLastError) last_error;
  decltype(&ncclGetUniqueId) unique_id;
  decltype(&ncclCommInitRankConfig) init;
  decltype(&ncclCommGetAsyncError) async_error;
  decltype(&ncclGroupStart) group_start;
  decltype(&ncclGroupEnd) group_end;
  decltype(&ncclSend) send;
  decltype(&ncclRecv) receive;
};

/// Returns null if the library is missing, is older than this build's headers, or is switched off
/// (HALFTONE_CUDA_LIBRARIES=off).
const Functions* functions();
/// Returns why; empty if functions() is not null.
std::string refusal();

}  // namespace halftone::cuda::nccl
