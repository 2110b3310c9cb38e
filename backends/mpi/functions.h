// The MPI functions that halftone uses, looked up when a launcher has started several processes: a
// program that trains alone neither needs nor loads MPI. Handles that Open MPI stores in variables
// of its library are looked up with them; those of MPICH are numbers.
#pragma once

#include <string>

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

namespace halftone::mpi {

struct Functions {
  decltype(&MPI_Abort) abort;
  decltype(&MPI_Allgather) allgather;
  decltype(&MPI_Comm_dup) comm_dup;
  decltype(&MPI_Comm_free) comm_free;
  decltype(&MPI_Comm_rank) comm_rank;
  decltype(&MPI_Comm_set_errhandler) comm_set_errhandler;
  decltype(&MPI_Comm_size) comm_size;
  decltype(&MPI_Comm_split_type) comm_split_type;
  decltype(&MPI_Error_string) error_string;
  decltype(&MPI_Finalize) finalize;
  decltype(&MPI_Get_library_version) get_library_version;
  decltype(&MPI_Init_thread) init_thread;
  decltype(&MPI_Irecv) irecv;
  decltype(&MPI_Isend) isend;
  decltype(&MPI_Request_get_status) request_get_status;
  decltype(&MPI_Test) test;
  decltype(&MPI_Testall) testall;
  decltype(&MPI_Waitall) waitall;

  MPI_Comm comm_null, comm_self, comm_world;
  MPI_Datatype byte_type, char_type, int_type;
  MPI_Errhandler errors_return;
  MPI_Info info_null;
  MPI_Request request_null;
};

/// Returns null if the library cannot be opened or lacks a function.
const Functions* functions();
/// Returns the reason why functions() is null.
std::string refusal();

}  // namespace halftone::mpi
