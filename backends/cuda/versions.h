// Which versions of the driver and of NVIDIA's libraries work with this build, and the message if
// one does not. The functions map numbers to text, so tests need no driver and no library.
#pragma once

#include <cstddef>
#include <string>

namespace halftone::cuda {

/// Returns "13.0" for 13000, the numbering of the runtime and the driver.
std::string version_text(int version);

/// Returns a text for a driver older than the runtime: what it supports, and which one is needed.
/// driver 0: there is none.
std::string driver_advice(int driver, int runtime);

/// Returns "" if a cuBLASLt of version `found` works with a build with headers of `built` (both
/// numbered like cublasLtGetVersion(), 130100 for 13.1), otherwise the reason.
std::string cublaslt_refusal(std::size_t found, std::size_t built);

/// Returns "2.28.9" for 22809, the numbering of ncclGetVersion().
std::string nccl_version_text(int version);
/// Returns "" if an NCCL of version `found` works with a build with headers of `built`, otherwise
/// the reason.
std::string nccl_refusal(int found, int built);

/// Returns "" if a cuDNN made for the CUDA runtime `made_for` works with a build with `runtime`
/// (both in the runtime's numbering), otherwise the reason.
std::string cudnn_refusal(int made_for, int runtime);

}  // namespace halftone::cuda
