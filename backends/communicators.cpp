// The only list of engines, and the choice of one: by what launchers tell their processes.
#include <cassert>
#include <cstdio>
#include <cstdlib>

#include <halftone/backends/mpi/mpi.h>
#include <halftone/core/communicator.h>
#include <halftone/core/error.h>
#include <halftone/core/variable.h>

namespace halftone {

namespace {
/// One process, which has nobody to talk to.
class SingleCommunicator final : public Communicator {
 public:
  std::string_view name() const override { return "single"; }
  int rank() const override { return 0; }
  int size() const override { return 1; }
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
  TrafficReport traffic() const override { return {}; }
};

/// How many processes the launcher started, by the variables of Open MPI and of MPICH's hydra; 1
/// without one.
int launched_processes() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"})
    if (const char* value = environment_variable(name)) return std::atoi(value);
  return 1;
}

std::unique_ptr<Communicator> start_engine() {
  const int launched = launched_processes();
  if (launched > 1) return start_mpi(launched);
  return std::make_unique<SingleCommunicator>();
}
}  // namespace

Communicator& world() {
  // Never destroyed: it ends with the process, by a handler of its own.
  static Communicator* instance = start_engine().release();
  return *instance;
}

std::vector<EngineStatus> engine_statuses() { return {{"mpi", mpi_present(), mpi_description()}}; }

}  // namespace halftone
