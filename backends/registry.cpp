// The only lists of backends and of engines.
#include <halftone/backends/registry.h>

#include <atomic>
#include <cassert>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <string>

#include <halftone/backends/cpu/cpu_backend.h>
#include <halftone/backends/cpu/onednn/onednn.h>
#include <halftone/backends/cpu/staging.h>
#include <halftone/backends/reference/reference.h>
#include <halftone/backends/team.h>
#include <halftone/core/communicator.h>
#include <halftone/core/device.h>
#include <halftone/core/error.h>
#include <halftone/core/files.h>

namespace halftone {

// The only list of backends, and the choice of one for a device.

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
           portable_bits() ? "portable bits" : kernels_in_use() + ", " + onednn::description()},
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

// The only list of communication engines, and the choice of one by the variables of launchers.

namespace {
/// The communicator of one process, which has no peers.
class SingleCommunicator final : public Communicator {
 public:
  std::string_view name() const override { return "single"; }
  int rank() const override { return 0; }
  int size() const override { return 1; }
  int local_rank() const override { return 0; }
  int machines() const override { return 1; }
  std::shared_ptr<Exchange> exchange(std::string_view, TrafficUse, std::span<const Message> out,
                                     std::span<const Message> in) override {
    assert(out.empty() && in.empty());
    static_cast<void>(out), static_cast<void>(in);
    struct Nothing final : Exchange {
      void wait() override {}
    };
    return std::make_shared<Nothing>();
  }
  [[noreturn]] void abort(std::string_view message) noexcept override {
    std::fprintf(stderr, "%.*s\n", int(message.size()), message.data());
    std::_Exit(1);
  }
};

/// Returns the number in the first of these variables that is set; 0 if none is.
int number_in(std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (const char* value = environment_variable(name)) return std::atoi(value);
  return 0;
}

/// Starts an engine by the variables of Open MPI, of MPICH's hydra, or of Slurm's srun, which
/// starts processes of either or of neither.
std::unique_ptr<Communicator> start_engine() {
  if (const int launched = number_in({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}))
    return launched > 1 ? start_mpi(launched) : std::make_unique<SingleCommunicator>();
  const int tasks = number_in({"SLURM_STEP_NUM_TASKS"});
  if (tasks <= 1) return std::make_unique<SingleCommunicator>();
  if (environment_variable("PMIX_RANK")) return start_mpi(tasks);
  fail<UsageError>(
      "distributed", "srun started ", tasks,
      " processes that cannot find each other: each would train alone, in the same "
      "place. Start them with mpirun, or with srun --mpi=pmix (Open MPI) or --mpi=pmi2 (MPICH); "
      "if each is to train alone, without SLURM_STEP_NUM_TASKS (env -u).");
}
}  // namespace

Communicator& world() {
  // Never destroyed: it ends with the process, by its own exit handler.
  static Communicator* instance = start_engine().release();
  return *instance;
}

Communicator& communicator_for(Communicator& group, Device device) {
  if (group.size() == 1 || device.kind != DeviceKind::cuda || &group != &world()) return group;
  // Never destroyed, as world(). A rank has one GPU.
  static Communicator* const nccl = start_nccl(group, device).release();
  return nccl && nccl->carries(device) ? *nccl : group;
}

std::vector<EngineStatus> engine_statuses() {
  return {{"mpi", mpi_present(), mpi_description()}, {"nccl", nccl_present(), nccl_description()}};
}

}  // namespace halftone
