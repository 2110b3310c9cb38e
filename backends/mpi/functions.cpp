// Opens the MPI library that this build was configured with: by the loader's name for it, or by its
// path.
#include <halftone/backends/mpi/functions.h>

#include <halftone/backends/opened_library.h>

namespace halftone::mpi {

namespace {
using Found = LibraryFunctions<Functions>;

void find_handles([[maybe_unused]] OpenedLibrary& library, Functions& f) {
#ifdef OPEN_MPI
  library.find("ompi_mpi_comm_null", f.comm_null);
  library.find("ompi_mpi_comm_self", f.comm_self);
  library.find("ompi_mpi_comm_world", f.comm_world);
  library.find("ompi_mpi_byte", f.byte_type);
  library.find("ompi_mpi_char", f.char_type);
  library.find("ompi_mpi_int", f.int_type);
  library.find("ompi_mpi_errors_return", f.errors_return);
  library.find("ompi_mpi_info_null", f.info_null);
  library.find("ompi_request_null", f.request_null);
#else
  f.comm_null = MPI_COMM_NULL, f.comm_self = MPI_COMM_SELF, f.comm_world = MPI_COMM_WORLD;
  f.byte_type = MPI_BYTE, f.char_type = MPI_CHAR, f.int_type = MPI_INT;
  f.errors_return = MPI_ERRORS_RETURN, f.info_null = MPI_INFO_NULL;
  f.request_null = MPI_REQUEST_NULL;
#endif
}

Found found_library() {
  Found found;
  Functions& f = found.functions;
  OpenedLibrary library({HALFTONE_MPI_SONAME, HALFTONE_MPI_PATH}, OpenedLibrary::Symbols::global);
  if (!library.is_open())
    return {{}, library.error() + ". Install the package that has " HALFTONE_MPI_SONAME};
  library.find("MPI_Abort", f.abort);
  library.find("MPI_Allgather", f.allgather);
  library.find("MPI_Comm_dup", f.comm_dup);
  library.find("MPI_Comm_free", f.comm_free);
  library.find("MPI_Comm_rank", f.comm_rank);
  library.find("MPI_Comm_set_errhandler", f.comm_set_errhandler);
  library.find("MPI_Comm_size", f.comm_size);
  library.find("MPI_Comm_split_type", f.comm_split_type);
  library.find("MPI_Error_string", f.error_string);
  library.find("MPI_Finalize", f.finalize);
  library.find("MPI_Get_library_version", f.get_library_version);
  library.find("MPI_Init_thread", f.init_thread);
  library.find("MPI_Irecv", f.irecv);
  library.find("MPI_Isend", f.isend);
  library.find("MPI_Request_get_status", f.request_get_status);
  library.find("MPI_Test", f.test);
  library.find("MPI_Testall", f.testall);
  library.find("MPI_Waitall", f.waitall);
  find_handles(library, f);
  if (!library.complete()) found.refusal = HALFTONE_MPI_SONAME " lacks functions of MPI";
  return found;
}
}  // namespace

const Functions* functions() { return Found::once<found_library>().get(); }
std::string refusal() { return Found::once<found_library>().refusal; }

}  // namespace halftone::mpi
