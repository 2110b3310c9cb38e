// The devices of this machine, opened at their first use.
#include <halftone/backends/cuda/cuda.h>

#include <map>
#include <memory>
#include <mutex>
#include <sstream>

#include <halftone/backends/cuda/cublaslt/cublaslt.h>
#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/cudnn/cudnn.h>
#include <halftone/backends/cuda/libraries.h>

namespace halftone {

namespace {
/// Returns the number of usable devices, and why there are none.
int device_count(std::string* why = nullptr) {
  int devices = 0;
  const cudaError_t result = cudaGetDeviceCount(&devices);
  if (result == cudaSuccess && devices > 0) return devices;
  cudaGetLastError();
  if (why) {
    int driver = 0, runtime = 0;
    cudaDriverGetVersion(&driver), cudaRuntimeGetVersion(&runtime);
    *why = result == cudaErrorInsufficientDriver
               ? cuda::driver_advice(driver, runtime)
               : std::string("no GPU was found (") + cudaGetErrorString(result) + ")";
  }
  return 0;
}

/// Writes "NVIDIA H100 (sm_90".
void name_gpu(PlainText& text, const cudaDeviceProp& properties) {
  text << properties.name << " (sm_" << properties.major << properties.minor;
}

std::string libraries() {
  return cuda::cublaslt::description() + ", " + cuda::cudnn::description();
}
}  // namespace

Backend* cuda_backend(int index) {
  static std::mutex mutex;
  // Never destroyed: tensors with static lifetime release their memory through a backend.
  static auto* const backends = new std::map<int, std::unique_ptr<CudaBackend>>;
  static const int devices = device_count();
  if (devices == 0) return nullptr;
  const std::lock_guard lock(mutex);
  std::unique_ptr<CudaBackend>& backend = (*backends)[index];
  if (!backend) backend = std::make_unique<CudaBackend>(index);
  return backend.get();
}

std::string cuda_description() {
  std::string why;
  const int devices = device_count(&why);
  if (devices == 0) return why;
  PlainText text;
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver), cudaRuntimeGetVersion(&runtime);
  for (int i = 0; i < devices; ++i) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, i) != cudaSuccess) continue;
    text << (i ? "; " : "") << i << ": ";
    name_gpu(text, properties);
    text << ", " << (properties.totalGlobalMem >> 20) << " MiB)";
  }
  text << "; CUDA " << cuda::version_text(runtime) << ", driver " << cuda::version_text(driver)
       << ", " << libraries() << cuda::calls_summary();
  return text.str();
}

std::string cuda_kernels(int index) {
  PlainText text;
  int runtime = 0;
  cudaRuntimeGetVersion(&runtime);
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, index) == cudaSuccess) name_gpu(text, properties);
  text << "), CUDA " << cuda::version_text(runtime) << ", " << libraries();
  return text.str();
}

}  // namespace halftone
