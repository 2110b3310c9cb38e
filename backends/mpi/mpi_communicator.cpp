// The communicator of mpirun's processes: passes exchanges to the engine thread.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include <omp.h>
#include <sched.h>
#include <unistd.h>

#include <halftone/backends/mpi/engine_thread.h>
#include <halftone/backends/mpi/mpi.h>
#include <halftone/core/error.h>
#include <halftone/core/files.h>

namespace halftone {

namespace {
class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(const mpi::Functions& functions, int launched) : engine_(functions) {
    if (engine_.size != launched)
      fail<UsageError>("distributed", "started ", launched, " times, but MPI sees ", engine_.size,
                       " of these processes: another MPI's mpirun started them, and this program "
                       "opens ",
                       mpi_description(), ". Use its own: mpirun.openmpi or mpirun.mpich.");
    if (!environment_variable("OMP_NUM_THREADS"))
      omp_set_num_threads(std::max(1, omp_get_num_procs() / engine_.local_size));
    note_binding();
  }

  std::string_view name() const override { return "mpi"; }
  int rank() const override { return engine_.rank; }
  int size() const override { return engine_.size; }
  int local_rank() const override { return engine_.local_rank; }
  int machines() const override { return engine_.machines; }

  std::shared_ptr<Exchange> exchange(std::string_view what, TrafficUse use,
                                     std::span<const Message> out,
                                     std::span<const Message> in) override {
    auto work = std::make_shared<mpi::Work>();
    work->what = what;
    work->out.assign(out.begin(), out.end()), work->in.assign(in.begin(), in.end());
    count(use, out);
    engine_.start(work);
    return std::make_shared<Waiting>(*this, std::move(work));
  }
  [[noreturn]] void abort(std::string_view message) noexcept override { engine_.abort(message); }
  int left() override { return engine_.left(); }
  void leave() noexcept { engine_.leave(); }

 private:
  struct Waiting final : Exchange {
    MpiCommunicator& owner;
    std::shared_ptr<mpi::Work> work;
    Waiting(MpiCommunicator& o, std::shared_ptr<mpi::Work> w) : owner(o), work(std::move(w)) {}
    void wait() override {
      const auto begin = mpi::Clock::now();
      owner.engine_.wait_for(*work);
      owner.traffic_.waited += std::chrono::duration<double>(mpi::Clock::now() - begin).count();
      if (!work->error.empty())
        fail<DeviceError>("distributed", "\"", work->what, "\" failed: ", work->error,
                          ". Do all ranks do the same?");
    }
  };

  /// Notes if the launcher bound this process to a single core, where its threads take turns.
  void note_binding() const {
    cpu_set_t own;
    if (engine_.rank != 0 || sched_getaffinity(0, sizeof own, &own) != 0) return;
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (CPU_COUNT(&own) < cores / engine_.local_size)
      std::fprintf(
          stderr,
          "[distributed] mpirun bound this process to %d of %ld cores: add --bind-to none\n",
          CPU_COUNT(&own), cores);
  }

  mpi::EngineThread engine_;
};

MpiCommunicator* mpi_world = nullptr;
}  // namespace

bool mpi_present() { return mpi::functions() != nullptr; }

std::string mpi_description() {
  if (!mpi_present()) return mpi::refusal();
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  mpi::functions()->get_library_version(text, &length);
  std::string line(text, std::size_t(length));
  line.resize(std::min(line.size(), line.find_first_of(",\n")));
  std::ranges::replace(line, '\t', ' ');
  return line;
}

std::unique_ptr<Communicator> start_mpi(int launched) {
  if (!mpi_present())
    fail<UsageError>("distributed", "started as one of ", launched,
                     " processes, but MPI cannot be opened: ", mpi::refusal(),
                     ", or start one process.");
  auto communicator = std::make_unique<MpiCommunicator>(*mpi::functions(), launched);
  mpi_world = communicator.get();
  std::atexit([] { mpi_world->leave(); });
  return communicator;
}

}  // namespace halftone
