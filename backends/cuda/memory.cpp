// Memory of the device: blocks from the cache, copies through page-locked buffers.
#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/core/error.h>
#include <halftone/core/memory_ledger.h>

namespace halftone {

namespace cuda {

Staging::~Staging() {
  for (const Buffer& buffer : buffers_) {
    cudaEventSynchronize(buffer.copied);
    cudaEventDestroy(buffer.copied);
    cudaFreeHost(buffer.data);
  }
}

/// A buffer of that size whose copy is done, moved to the end of the list.
Staging::Buffer* Staging::idle(std::size_t bytes) {
  const auto found = std::ranges::find_if(buffers_, [&](const Buffer& buffer) {
    return buffer.bytes >= bytes && cudaEventQuery(buffer.copied) == cudaSuccess;
  });
  cudaGetLastError();  // "not ready" is an answer
  if (found == buffers_.end()) return nullptr;
  std::rotate(found, found + 1, buffers_.end());
  return &buffers_.back();
}

Staging::Buffer& Staging::buffer_for(std::size_t bytes) {
  if (Buffer* const buffer = idle(bytes)) return *buffer;
  const std::size_t size = std::bit_ceil(std::max(bytes, std::size_t(1) << 16));
  if (total_bytes_ + size > most_bytes) {
    // Not a wait for results: for a copy that was issued long ago.
    const auto longest =
        std::ranges::find_if(buffers_, [&](const Buffer& b) { return b.bytes >= bytes; });
    if (longest != buffers_.end()) {
      check(cudaEventSynchronize(longest->copied), "waiting for a copy");
      std::rotate(longest, longest + 1, buffers_.end());
      return buffers_.back();
    }
  }
  Buffer made{nullptr, size, nullptr};
  check(cudaHostAlloc(&made.data, size, cudaHostAllocDefault),
        "allocating page-locked host memory");
  check(cudaEventCreateWithFlags(&made.copied, cudaEventDisableTiming), "making an event");
  total_bytes_ += size;
  return buffers_.emplace_back(made);
}

void Staging::copy(const void* host, void* device, std::size_t bytes) {
  context_.activate();
  if (context_.capturing())
    fail<UsageError>("cuda",
                     "host memory is copied to the device while a step is captured. Make tensors "
                     "of constants before the step, and pass what changes as its inputs.");
  const std::lock_guard lock(mutex_);
  for (std::size_t at = 0; at < bytes; at += largest_buffer) {
    const std::size_t part = std::min(largest_buffer, bytes - at);
    const Buffer& buffer = buffer_for(part);
    std::memcpy(buffer.data, static_cast<const std::byte*>(host) + at, part);
    check(cudaMemcpyAsync(static_cast<std::byte*>(device) + at, buffer.data, part,
                          cudaMemcpyHostToDevice, context_.stream()),
          "copying to the device");
    check(cudaEventRecord(buffer.copied, context_.stream()), "recording an event");
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
                    human(context_.memory().statistics().reserved), " are held by this process. ",
                    capturing() ? "While a step is recorded nothing can be given back. " : "",
                    "Use a smaller batch or model.\n", memory_report(context_.device()));
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
