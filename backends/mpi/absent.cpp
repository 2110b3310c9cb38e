// A build without MPI.
#include <halftone/backends/registry.h>
#include <halftone/core/error.h>

namespace halftone {

bool mpi_present() { return false; }
std::string mpi_description() { return "install libopenmpi-dev and configure again"; }
std::unique_ptr<Communicator> start_mpi(int launched) {
  fail<UsageError>("distributed", "started as one of ", launched,
                   " processes, but this build has no MPI: each would train alone, in the same "
                   "place. Install libopenmpi-dev and configure again, or start one process.");
}

}  // namespace halftone
