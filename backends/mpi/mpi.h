// What the list of engines knows of MPI: a communicator, if this build has one, or why not.
#pragma once

#include <memory>
#include <string>

#include <halftone/core/communicator.h>

namespace halftone {

/// Whether this build has MPI, and its library can be opened.
bool mpi_present();
/// "Open MPI v4.1.4", or what is missing.
std::string mpi_description();
/// Starts MPI, in a thread of its own, among `launched` processes; called once. Throws UsageError
/// if MPI cannot be opened, or sees another number of them: then another MPI's launcher started
/// this program.
std::unique_ptr<Communicator> start_mpi(int launched);

}  // namespace halftone
