// Which versions of the driver and of NVIDIA's libraries serve this build, and what to say where
// one does not. Numbers in, text out: tested without any of them.
#pragma once

#include <cstddef>
#include <string>

namespace halftone::cuda {

/// "13.0" of 13000, as the runtime and the driver count.
std::string version_text(int version);

/// For a driver older than the runtime: what it serves, and which one is needed. driver 0: there is
/// none.
std::string driver_advice(int driver, int runtime);

/// Empty if a cuBLASLt of that version serves a build with headers of `built` (both as
/// cublasLtGetVersion() counts, 130100 for 13.1), else why not.
std::string cublaslt_refusal(std::size_t found, std::size_t built);

/// "2.28.9" of 22809, as ncclGetVersion() counts.
std::string nccl_version_text(int version);
/// Empty if an NCCL of that version serves a build with headers of `built`, else why not.
std::string nccl_refusal(int found, int built);

/// Empty if a cuDNN that was made for the CUDA runtime `made_for` serves a build with `runtime`
/// (both as the runtime counts), else why not.
std::string cudnn_refusal(int made_for, int runtime);

}  // namespace halftone::cuda
