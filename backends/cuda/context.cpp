// Opens a device, and converts errors of the CUDA runtime to errors of the framework.
#include <halftone/backends/cuda/context.h>

#include <array>
#include <mutex>

#include <halftone/backends/cuda/versions.h>
#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/core/files.h>
#include <halftone/core/memory.h>

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
/// device in another way would make `current` wrong.
cudaError_t use_device(int index) {
  thread_local int current = -1;
  if (current == index) return cudaSuccess;
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
  for (cudaStream_t* stream : {&stream_, &recording_stream_})
    check(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking), "making a stream");
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
  cudaStreamDestroy(stream_), cudaStreamDestroy(recording_stream_);
}

void Context::activate() const { check(use_device(index_), "choosing a device"); }

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
