// The devices of this machine, opened at their first use.
#include <halftone/backends/cuda/context.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <utility>

#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/for_cudnn.h>
#include <halftone/backends/cuda/libraries.h>
#include <halftone/backends/registry.h>
#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/core/files.h>
#include <halftone/core/memory.h>

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

// Opens a device, and converts errors of the CUDA runtime to errors of the framework.

namespace halftone::cuda {

void check(cudaError_t result, std::string_view what) {
  if (result == cudaSuccess) return;
  cudaGetLastError();  // clears an error that is not sticky, so that the next call does not find it
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver), cudaRuntimeGetVersion(&runtime);
  fail<DeviceError>("cuda", what, " failed: ", cudaGetErrorName(result), ", ",
                    cudaGetErrorString(result), " (driver ", driver, ", runtime ", runtime, ")",
                    driver < runtime
                        ? ": " + driver_advice(driver, runtime) + "."
                        : ". If it repeats, run under compute-sanitizer to see where.");
}

void raise(const Fault& fault) {
  switch (FaultKind(fault.kind)) {
    case FaultKind::none: return;
    case FaultKind::embedding_index:
      fail<UsageError>("embedding", "index ", fault.value, " is out of range for a table of ",
                       fault.bound, " rows. Indices must be from 0 to ", fault.bound - 1, ".");
    case FaultKind::cross_entropy_target:
      fail<UsageError>("cross_entropy", "target ", fault.value, " is out of range for ",
                       fault.bound, " classes. Targets must be from 0 to ", fault.bound - 1,
                       ", or ignore_index.");
    case FaultKind::gather_index:
      fail<UsageError>("gather", "index ", fault.value, " is out of range for a dimension of size ",
                       fault.bound, ". Indices must be from 0 to ", fault.bound - 1,
                       ", here and in what is made of it: index_select, scatter_add, one_hot.");
  }
}

namespace {
bool caching_wanted() {
  const char* const wanted = environment_variable("HALFTONE_CUDA_CACHE");
  return !wanted || std::string_view(wanted) != "off";
}

/// Makes this the device of the calling thread. All code must use this function: changing the
/// device in another way would make `current` wrong. certainly: another library may have done so.
cudaError_t use_device(int index, bool certainly = false) {
  thread_local int current = -1;
  if (current == index && !certainly) return cudaSuccess;
  const cudaError_t result = cudaSetDevice(index);
  current = result == cudaSuccess ? index : -1;
  return result;
}

BlockCache::Source memory_of(int device) {
  return {[device](std::size_t bytes) -> void* {
            void* data = nullptr;
            use_device(device);
            const cudaError_t result = cudaMalloc(&data, bytes);
            if (result == cudaSuccess) return data;
            // An earlier kernel's error also shows here; that is not a lack of memory.
            if (result != cudaErrorMemoryAllocation) check(result, "allocating");
            cudaGetLastError();
            return nullptr;
          },
          [device](void* data) {
            use_device(device);
            cudaFree(data);  // waits for the device
          }};
}
}  // namespace

Context::Context(int index) : index_(index), memory_(memory_of(index), caching_wanted()) {
  int devices = 0;
  check(cudaGetDeviceCount(&devices), "counting devices");
  if (index < 0 || index >= devices)
    fail<DeviceError>("cuda", "there is no device ", index, " among ", devices,
                      ". Use an index from 0 to ", devices - 1, ".");
  activate();
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, index), "reading the properties of a device");
  compute_capability_ = 10 * properties.major + properties.minor;
  multiprocessors_ = properties.multiProcessorCount;
  if (compute_capability_ < 80)
    fail<DeviceError>("cuda", "device ", index, ", ", properties.name, ", has compute capability ",
                      properties.major, ".", properties.minor,
                      ". The kernels need 8.0 (Ampere) or later: use the CPU.");
  for (cudaStream_t* stream : {&own_stream_, &recording_stream_})
    check(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking), "making a stream");
  stream_ = own_stream_;
  check(cudaEventCreateWithFlags(&moved_, cudaEventDisableTiming), "making an event");
  check(cudaMalloc(&fault_, sizeof(Fault)), "allocating");
  check(cudaMalloc(&key_shift_, 2 * sizeof(uint64_t)), "allocating");
  void* reported = nullptr;
  check(cudaHostAlloc(&reported, sizeof(Fault), cudaHostAllocDefault), "allocating host memory");
  reported_ = static_cast<Fault*>(reported);
  check(cudaMemsetAsync(fault_, 0, sizeof(Fault), stream_), "clearing memory");
  check(cudaMemsetAsync(key_shift_, 0, 2 * sizeof(uint64_t), stream_), "clearing memory");
}

Context::~Context() {
  use_device(index_);
  cudaStreamSynchronize(stream_);
  cudaFree(fault_), cudaFree(key_shift_), cudaFreeHost(reported_);
  cudaEventDestroy(moved_);
  cudaStreamDestroy(own_stream_), cudaStreamDestroy(recording_stream_);
}

void Context::activate() const { check(use_device(index_), "choosing a device"); }

void Context::use_stream(cudaStream_t stream) {
  check(use_device(index_, true), "choosing a device");
  if (stream == stream_) return;
  check(cudaEventRecord(moved_, stream_), "recording an event");
  check(cudaStreamWaitEvent(stream, moved_, 0), "waiting for an event");
  stream_ = stream;
}

bool Context::begin_recording() {
  std::thread::id no_thread;
  return recorder_.compare_exchange_strong(no_thread, std::this_thread::get_id());
}

void Context::require_not_capturing() const {
  if (capturing())
    fail<UsageError>("cuda",
                     "a value is read back to the host while a step is captured. Leave item(), "
                     "to_vector(), synchronize() and printing until after the step.");
}

namespace {
/// Returns the lock for a device's fault report: threads wait one after the other.
std::mutex& reports_of(int index) {
  static std::array<std::mutex, 64> of_devices;
  return of_devices[std::size_t(index) % of_devices.size()];
}
}  // namespace

void Context::wait() {
  activate();
  require_not_capturing();
  const std::lock_guard lock(reports_of(index_));
  ++waits_;
  check(cudaMemcpyAsync(reported_, fault_, sizeof(Fault), cudaMemcpyDeviceToHost, stream_),
        "copying to the host");
  check(cudaStreamSynchronize(stream_), "waiting for the device");
  if (reported_->kind == 0) return;
  const Fault fault = *reported_;
  check(cudaMemsetAsync(fault_, 0, sizeof(Fault), stream_), "clearing memory");
  raise(fault);
}

std::optional<Tensor> workspace(const Context& context, int64_t bytes) {
  try {
    return scratch(context, {bytes}, u8);
  } catch (const DeviceError&) { return std::nullopt; }
}

Tensor scratch(const Context& context, const Shape& shape, DType dtype) {
  const MemoryScope scope(MemoryUse::workspace);
  return empty(shape, dtype, context.device());
}

}  // namespace halftone::cuda

// Memory of the device: blocks from the cache, copies to and from the host.

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

// Page-locked buffers, and the stream of large copies.

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
