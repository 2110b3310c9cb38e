// Drivers and libraries of other versions than this build's: refusals and messages.
#include <doctest/doctest.h>

#include <halftone/backends/cuda/launch.h>
#include <halftone/backends/cuda/libraries.h>
#include <halftone/core/backend.h>
#include <halftone/core/device.h>
#include <halftone/core/error.h>
#include <halftone/core/factory.h>

#include "emulator.h"

namespace halftone::cuda {
namespace {

TEST_CASE("the list of what results depend on does not change with computations") {
  const std::string before = kernels_of(Device::cuda());
  const Tensor x = ones({4, 4}, f32, Device::cuda());
  Tensor y = empty({4, 4}, f32, Device::cuda());
  backend_for(x).matmul(x, x, {}, y);
  CHECK(kernels_of(Device::cuda()) == before);
  CHECK(before.starts_with("cuda: emulated GPU (sm_90), CUDA 13.0, cuBLASLt "));
}

TEST_CASE("a driver older than the toolkit: the message names the required one") {
  CHECK(driver_advice(0, 13000) ==
        "there is no NVIDIA driver (libcuda.so.1). This build has CUDA 13.0: install the driver "
        "580.65.06 or newer");
  CHECK(driver_advice(12040, 13000) ==
        "the driver serves CUDA up to 12.4, and this build has 13.0: install the driver 580.65.06 "
        "or newer (nvidia-smi shows the one you have), or build with a toolkit of CUDA 12");
  CHECK(driver_advice(11080, 12010).find("525.60.13") != std::string::npos);
  CHECK(driver_advice(12020, 12060) ==
        "the driver serves CUDA up to 12.2, and this build has 12.6: it runs kernels that have "
        "machine code for the GPU (HALFTONE_CUDA_ARCHITECTURES) and compiles no others. Install "
        "the driver that came with CUDA 12.6 or newer, or build for this GPU");
}

TEST_CASE("with a driver that is too old the backend says so") {
  emulation::set_driver_version(12040);
  std::string said;
  for (const BackendStatus& status : backend_statuses())
    if (status.name == "cuda") said = status.description;
  emulation::set_driver_version(13000);
  cudaGetLastError();
  CHECK(said == driver_advice(12040, 13000));
}

__global__ void nothing() {}

TEST_CASE("an error of the runtime under an older driver says which driver is needed") {
  const Context context(0);
  emulation::set_driver_version(12040);
  std::string said;
  try {
    launch(context, nothing, {dim3(1), dim3(2048)});
  } catch (const DeviceError& error) { said = error.what(); }
  emulation::set_driver_version(13000);
  CHECK(said.find("(driver 12040, runtime 13000): the driver serves CUDA up to 12.4") !=
        std::string::npos);
}

TEST_CASE("cuBLASLt older than the headers, or of another major version, is not used") {
  CHECK(cublaslt_refusal(130100, 130100).empty());
  CHECK(cublaslt_refusal(130205, 130100).empty());
  CHECK(cublaslt_refusal(130101, 130104).empty());  // a patch changes no interface
  CHECK(cublaslt_refusal(130000, 130100) ==
        "cuBLASLt 13.0 is left out: this build has the headers of 13.1");
  CHECK_FALSE(cublaslt_refusal(140000, 130100).empty());
  CHECK_FALSE(cublaslt_refusal(120900, 130100).empty());
}

TEST_CASE("cuDNN for another major version of CUDA is not used") {
  CHECK(cudnn_refusal(13000, 13020).empty());
  CHECK(cudnn_refusal(12090, 13000) ==
        "cuDNN is left out: it was made for CUDA 12, and this build has 13.0. Install the one for "
        "CUDA 13, or point HALFTONE_CUDNN_ROOT at it");
}

TEST_CASE("NCCL older than the headers, or of another major version, is not used") {
  CHECK(nccl_version_text(22809) == "2.28.9");
  CHECK(nccl_refusal(22809, 22809).empty());
  CHECK(nccl_refusal(22901, 22809).empty());
  CHECK(nccl_refusal(22802, 22809).empty());  // a patch changes no interface
  CHECK(nccl_refusal(22704, 22809) ==
        "NCCL 2.27.4 is left out: this build has the headers of 2.28.9");
  CHECK_FALSE(nccl_refusal(30000, 22809).empty());
}

}  // namespace
}  // namespace halftone::cuda
