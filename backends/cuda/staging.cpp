// Page-locked buffers, and the stream of large copies.
#include <halftone/backends/cuda/staging.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include <halftone/core/error.h>
#include <halftone/core/memory.h>

namespace halftone::cuda {

Staging::~Staging() {
  for (const Buffer& buffer : buffers_) {
    cudaEventSynchronize(buffer.done);
    cudaEventDestroy(buffer.done);
    if (buffer.arrived) cudaEventDestroy(buffer.arrived);
    cudaFreeHost(buffer.data);
  }
  if (stream_) cudaStreamDestroy(stream_);
}

/// Returns a buffer of that size whose copy is done, moved to the end of the list.
Staging::Buffer* Staging::idle(std::size_t bytes) {
  const auto found = std::ranges::find_if(buffers_, [&](const Buffer& buffer) {
    return buffer.bytes >= bytes && cudaEventQuery(buffer.done) == cudaSuccess;
  });
  cudaGetLastError();  // "not ready" is a valid answer
  if (found == buffers_.end()) return nullptr;
  std::rotate(found, found + 1, buffers_.end());
  return &buffers_.back();
}

Staging::Buffer& Staging::buffer_for(std::size_t bytes) {
  if (Buffer* const buffer = idle(bytes)) return *buffer;
  const std::size_t size = std::bit_ceil(std::max(bytes, std::size_t(1) << 16));
  if (total_bytes_ + size > most_bytes) {
    // This waits for a copy that was issued long ago, not for results.
    const auto longest =
        std::ranges::find_if(buffers_, [&](const Buffer& b) { return b.bytes >= bytes; });
    if (longest != buffers_.end()) {
      check(cudaEventSynchronize(longest->done), "waiting for a copy");
      std::rotate(longest, longest + 1, buffers_.end());
      return buffers_.back();
    }
  }
  Buffer made{nullptr, size, nullptr};
  check(cudaHostAlloc(&made.data, size, cudaHostAllocDefault),
        "allocating page-locked host memory");
  check(cudaEventCreateWithFlags(&made.done, cudaEventDisableTiming), "making an event");
  total_bytes_ += size;
  return buffers_.emplace_back(made);
}

/// Tries once per buffer; without memory it does not try again.
void Staging::give_device_memory(Buffer& buffer) {
  if (buffer.on_device || device_bytes_ + buffer.bytes > device_limit_) return;
  std::optional<Tensor> memory = workspace(context_, int64_t(buffer.bytes));
  if (!memory) {
    device_limit_ = device_bytes_;
    return;
  }
  if (!stream_)
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
  check(cudaEventCreateWithFlags(&buffer.arrived, cudaEventDisableTiming), "making an event");
  // Earlier kernels may still use the memory.
  check(cudaEventRecord(buffer.done, context_.stream()), "recording an event");
  check(cudaStreamWaitEvent(stream_, buffer.done, 0), "waiting for an event");
  buffer.on_device = std::move(memory);
  device_bytes_ += buffer.bytes;
}

/// The buffer is idle, so its memory on the device is not in use.
void Staging::copy_on_own_stream(const Buffer& buffer, void* device, std::size_t bytes) {
  void* const between = buffer.on_device->raw_data();
  check(cudaMemcpyAsync(between, buffer.data, bytes, cudaMemcpyHostToDevice, stream_),
        "copying to the device");
  check(cudaEventRecord(buffer.arrived, stream_), "recording an event");
  check(cudaStreamWaitEvent(context_.stream(), buffer.arrived, 0), "waiting for an event");
  check(cudaMemcpyAsync(device, between, bytes, cudaMemcpyDeviceToDevice, context_.stream()),
        "copying on the device");
}

void Staging::copy(const void* host, void* device, std::size_t bytes) {
  context_.activate();
  if (context_.capturing())
    fail<UsageError>("cuda",
                     "host memory is copied to the device while a step is captured. Make tensors "
                     "of constants before the step, and pass what changes as its inputs.");
  const bool is_input = MemoryScope::current() == MemoryUse::input;
  const std::lock_guard lock(mutex_);
  for (std::size_t at = 0; at < bytes; at += largest_buffer) {
    const std::size_t part = std::min(largest_buffer, bytes - at);
    Buffer& buffer = buffer_for(part);
    std::memcpy(buffer.data, static_cast<const std::byte*>(host) + at, part);
    std::byte* const to = static_cast<std::byte*>(device) + at;
    const bool on_own_stream = is_input && part >= large_copy;
    if (on_own_stream) give_device_memory(buffer);
    if (on_own_stream && buffer.on_device) copy_on_own_stream(buffer, to, part);
    else
      check(cudaMemcpyAsync(to, buffer.data, part, cudaMemcpyHostToDevice, context_.stream()),
            "copying to the device");
    check(cudaEventRecord(buffer.done, context_.stream()), "recording an event");
  }
}

}  // namespace halftone::cuda
