// The only list of backends, and the choice of one for a device.
#include <atomic>
#include <string>

#include <halftone/backends/registry.h>
#include <halftone/backends/cpu/cpu_backend.h>
#include <halftone/backends/cpu/isa.h>
#include <halftone/backends/cpu/onednn/onednn.h>
#include <halftone/backends/cuda/cuda.h>
#include <halftone/backends/reference/reference.h>
#include <halftone/backends/team.h>
#include <halftone/core/device.h>
#include <halftone/core/files.h>

namespace halftone {

namespace {
// Never destroyed: tensors with static lifetime release their memory through a backend.
Backend& reference_backend() {
  static ReferenceBackend* instance = new ReferenceBackend;
  return *instance;
}
Backend& fast_cpu_backend() {
  static CpuBackend* instance = new CpuBackend;
  return *instance;
}

Backend& cpu_backend_named(std::string_view source, std::string_view name) {
  if (name == "reference") return reference_backend();
  if (name != "cpu")
    fail<UsageError>(source, "there is no CPU backend named \"", name, "\". Use cpu or reference.");
  return fast_cpu_backend();
}

std::atomic<Backend*>& cpu_slot() {
  static std::atomic<Backend*> slot = [] {
    const char* wanted = environment_variable("HALFTONE_CPU_BACKEND");
    return &cpu_backend_named("HALFTONE_CPU_BACKEND", wanted ? wanted : "cpu");
  }();
  return slot;
}
}  // namespace

Backend& backend_for(Device device) {
  if (device.kind == DeviceKind::cpu) {
    look_around();
    return *cpu_slot().load(std::memory_order_relaxed);
  }
  if (Backend* cuda = cuda_backend(device.index)) return *cuda;
  fail<DeviceError>("device", "there is no GPU to use: ", cuda_description(),
                    ". Use Device::cpu().");
}

std::vector<BackendStatus> backend_statuses() {
  return {{"reference", &reference_backend(), "plain loops: the specification"},
          {"cpu", &fast_cpu_backend(),
           portable_bits() ? "portable bits"
                           : std::string(simd_kernels().name) + (use_amx() ? " and amx" : "") +
                                 " kernels, " + onednn::description()},
          {"cuda", cuda_backend(0), cuda_description()}};
}

std::string kernels_of(Device device) {
  const Backend& backend = backend_for(device);
  std::string text(backend.name());
  if (device.kind == DeviceKind::cuda) return text + ": " + cuda_kernels(device.index);
  for (const BackendStatus& status : backend_statuses())
    if (status.backend == &backend) text += ": " + status.description;
  return text;
}

CpuBackendScope::CpuBackendScope(std::string_view name)
    : before_(cpu_slot().exchange(&cpu_backend_named("CpuBackendScope", name))) {}
CpuBackendScope::~CpuBackendScope() { cpu_slot().store(before_); }

CpuBackendReplacement::CpuBackendReplacement(Backend& backend)
    : before_(cpu_slot().exchange(&backend)) {}
CpuBackendReplacement::~CpuBackendReplacement() { cpu_slot().store(before_); }

}  // namespace halftone
