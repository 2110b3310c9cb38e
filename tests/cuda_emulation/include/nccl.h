// The part of NCCL's interface that backends/cuda/nccl uses, for the emulated build. The substitute
// (../nccl/nccl.cpp) is a shared library that is loaded as the real one is. Names and numbers are
// NCCL's.
#pragma once

#include <cstddef>

#include <cuda_runtime.h>

/// For the runtime only.
cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device);

#define NCCL_VERSION_CODE 22809

using ncclComm_t = struct ncclComm*;
struct ncclUniqueId {
  char internal[128];
};
enum ncclResult_t {
  ncclSuccess = 0,
  ncclSystemError = 2,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7,
};
enum ncclDataType_t { ncclInt8 = 0 };
struct ncclConfig_t {
  int blocking;
};
#define NCCL_CONFIG_INITIALIZER \
  { 1 }

extern "C" {
ncclResult_t ncclGetVersion(int* version);
const char* ncclGetErrorString(ncclResult_t);
const char* ncclGetLastError(ncclComm_t);
ncclResult_t ncclGetUniqueId(ncclUniqueId*);
ncclResult_t ncclCommInitRankConfig(ncclComm_t*, int size, ncclUniqueId, int rank, ncclConfig_t*);
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t*);
ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();
ncclResult_t ncclSend(const void*, std::size_t count, ncclDataType_t, int peer, ncclComm_t,
                      cudaStream_t);
ncclResult_t ncclRecv(void*, std::size_t count, ncclDataType_t, int peer, ncclComm_t, cudaStream_t);
}
