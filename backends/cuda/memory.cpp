// Memory of the device: blocks from the cache, copies to and from the host.
#include <halftone/backends/cuda/conv_weights.h>
#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/core/error.h>
#include <halftone/core/memory.h>

namespace halftone {

void* CudaBackend::allocate(std::size_t bytes) {
  if (void* data = context_.memory().allocate(bytes)) return data;
  std::size_t free = 0, total = 0;
  context_.activate();
  cudaMemGetInfo(&free, &total);
  const auto human = [](std::size_t n) { return HumanBytes{int64_t(n)}; };
  fail<DeviceError>("allocate", "cannot allocate ", human(bytes), " on ", context_.device(), ": ",
                    human(free), " of ", human(total), " are free, ",
                    human(context_.memory().statistics().reserved), " are held by this process. ",
                    capturing() ? "While a step is recorded nothing can be given back. " : "",
                    "Use a smaller batch or model.\n", memory_report(context_.device()));
}

void CudaBackend::release(void* data, std::size_t bytes) noexcept {
  cuda::forget_weight(data);
  context_.memory().release(data, bytes);
}

void CudaBackend::copy_to_host(const void* device, void* host, std::size_t bytes) {
  context_.activate();
  context_.require_not_capturing();
  if (bytes > 0)
    cuda::check(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, context_.stream()),
                "copying to the host");
  context_.wait();
}

void CudaBackend::copy_from_host(const void* host, void* device, std::size_t bytes) {
  staging_.copy(host, device, bytes);
}

}  // namespace halftone
