// Memory of the device: blocks from the cache, copies through the ring of page-locked buffers.
#include <algorithm>
#include <cstring>
#include <limits>

#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/core/error.h>
#include <halftone/core/memory_ledger.h>

namespace halftone {

namespace cuda {

Staging::~Staging() {
  for (Buffer& buffer : buffers_) {
    if (buffer.in_flight) cudaEventSynchronize(buffer.copied);
    if (buffer.copied) cudaEventDestroy(buffer.copied);
    cudaFreeHost(buffer.data);
  }
}

Staging::Buffer& Staging::next() {
  Buffer& buffer = buffers_[turn_++ % buffer_count];
  if (!buffer.data) {
    check(cudaHostAlloc(&buffer.data, buffer_bytes, cudaHostAllocDefault),
          "allocating page-locked host memory");
    check(cudaEventCreateWithFlags(&buffer.copied, cudaEventDisableTiming), "making an event");
  }
  // Not a wait for results: the copy of four buffers ago, which is nearly always done.
  if (buffer.in_flight) check(cudaEventSynchronize(buffer.copied), "waiting for a copy");
  buffer.in_flight = false;
  return buffer;
}

void Staging::copy(const void* host, void* device, std::size_t bytes) {
  context_.activate();
  if (context_.capturing())
    fail<UsageError>("cuda",
                     "host memory is copied to the device while a step is captured. Make tensors "
                     "of constants before the step, and pass what changes as its inputs.");
  for (std::size_t at = 0; at < bytes; at += buffer_bytes) {
    const std::size_t part = std::min(buffer_bytes, bytes - at);
    Buffer& buffer = next();
    std::memcpy(buffer.data, static_cast<const std::byte*>(host) + at, part);
    check(cudaMemcpyAsync(static_cast<std::byte*>(device) + at, buffer.data, part,
                          cudaMemcpyHostToDevice, context_.stream()),
          "copying to the device");
    check(cudaEventRecord(buffer.copied, context_.stream()), "recording an event");
    buffer.in_flight = true;
  }
}

}  // namespace cuda

void* CudaBackend::allocate(std::size_t bytes) {
  if (void* data = context_.memory().allocate(bytes)) return data;
  std::size_t free = 0, total = 0;
  context_.activate();
  cudaMemGetInfo(&free, &total);
  const auto human = [](std::size_t n) { return HumanBytes{int64_t(n)}; };
  fail<DeviceError>("allocate", "cannot allocate ", human(bytes), " on ", context_.device(), ": ",
                    human(free), " of ", human(total), " are free, ",
                    human(context_.memory().statistics().reserved),
                    " are held by this process. Use a smaller batch or model.\n",
                    memory_report(context_.device()));
}

void CudaBackend::release(void* data, std::size_t bytes) noexcept {
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
