// Texts about versions. Drivers: NVIDIA's CUDA Toolkit release notes, table of minor version
// compatibility. Every driver from the first one of a major version on supports all of that
// version, if kernels have machine code.
#include <halftone/backends/cuda/versions.h>

namespace halftone::cuda {

namespace {
/// Returns the first driver (Linux) for a major version of CUDA.
std::string first_driver(int major) {
  switch (major) {
    case 12: return "525.60.13";
    case 13: return "580.65.06";
    default: return "of CUDA " + std::to_string(major);
  }
}
}  // namespace

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string driver_advice(int driver, int runtime) {
  const std::string need = first_driver(runtime / 1000);
  if (driver == 0)
    return "there is no NVIDIA driver (libcuda.so.1). This build has CUDA " +
           version_text(runtime) + ": install the driver " + need + " or newer";
  const std::string has = "the driver serves CUDA up to " + version_text(driver) +
                          ", and this build has " + version_text(runtime);
  if (driver / 1000 < runtime / 1000)
    return has + ": install the driver " + need +
           " or newer (nvidia-smi shows the one you have), or build with a toolkit of CUDA " +
           std::to_string(driver / 1000);
  return has +
         ": it runs kernels that have machine code for the GPU (HALFTONE_CUDA_ARCHITECTURES) and "
         "compiles no others. Install the driver that came with CUDA " +
         version_text(runtime) + " or newer, or build for this GPU";
}

std::string cublaslt_refusal(std::size_t found, std::size_t built) {
  const auto text = [](std::size_t version) {
    return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100);
  };
  if (found / 100 >= built / 100 && found / 10000 == built / 10000) return "";
  return "cuBLASLt " + text(found) + " is left out: this build has the headers of " + text(built);
}

std::string nccl_version_text(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

std::string nccl_refusal(int found, int built) {
  if (found / 100 >= built / 100 && found / 10000 == built / 10000) return "";
  return "NCCL " + nccl_version_text(found) + " is left out: this build has the headers of " +
         nccl_version_text(built);
}

std::string cudnn_refusal(int made_for, int runtime) {
  if (made_for / 1000 == runtime / 1000) return "";
  return "cuDNN is left out: it was made for CUDA " + std::to_string(made_for / 1000) +
         ", and this build has " + version_text(runtime) + ". Install the one for CUDA " +
         std::to_string(runtime / 1000) + ", or point HALFTONE_CUDNN_ROOT at it";
}

}  // namespace halftone::cuda
