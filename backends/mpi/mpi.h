// MPI for the list of engines: a communicator if this build has MPI, or the reason why not.
#pragma once

#include <memory>
#include <string>

#include <halftone/core/communicator.h>

namespace halftone {

/// Returns whether this build has MPI and its library can be opened.
bool mpi_present();
/// Returns "Open MPI v4.1.4", or a text about what is missing.
std::string mpi_description();
/// Starts MPI, in its own thread, for `launched` processes; call it once. Throws UsageError if MPI
/// cannot be opened, or if it sees another number of processes: then another MPI's launcher started
/// this program.
std::unique_ptr<Communicator> start_mpi(int launched);

}  // namespace halftone
