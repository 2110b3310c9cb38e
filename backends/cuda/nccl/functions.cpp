// NCCL, opened at run time: from the loader's path, or from the toolkit that this build used.
#include <halftone/backends/cuda/nccl/functions.h>

#include <string>

#include <halftone/backends/cuda/libraries.h>
#include <halftone/backends/cuda/nccl/nccl.h>
#include <halftone/backends/cuda/versions.h>
#include <halftone/backends/opened_library.h>

namespace halftone {

namespace cuda::nccl {

namespace {
using Found = LibraryFunctions<Functions>;

bool find_all(OpenedLibrary& library, Functions& f) {
  library.find("ncclGetVersion", f.version);
  library.find("ncclGetErrorString", f.error_text);
  library.find("ncclGetLastError", f.last_error);
  library.find("ncclGetUniqueId", f.unique_id);
  library.find("ncclCommInitRankConfig", f.init);
  library.find("ncclCommGetAsyncError", f.async_error);
  library.find("ncclGroupStart", f.group_start);
  library.find("ncclGroupEnd", f.group_end);
  library.find("ncclSend", f.send);
  library.find("ncclRecv", f.receive);
  return library.complete();
}

Found found_library() {
  Found found;
  if (!libraries_wanted()) return {{}, "HALFTONE_CUDA_LIBRARIES=off"};
  const std::string name = "libnccl.so.2";
  OpenedLibrary library({name, HALFTONE_CUDA_LIBRARY_DIRECTORY "/" + name});
  if (!library.is_open()) return {{}, library.error() + ". Install NCCL (libnccl2)"};
  if (!find_all(library, found.functions)) return {{}, "NCCL lacks functions"};
  int version = 0;
  found.functions.version(&version);
  found.refusal = nccl_refusal(version, NCCL_VERSION_CODE);
  return found;
}
}  // namespace

const Functions* functions() { return Found::once<found_library>().get(); }
std::string refusal() { return Found::once<found_library>().refusal; }

}  // namespace cuda::nccl

bool nccl_present() { return cuda::nccl::functions() != nullptr; }

std::string nccl_description() {
  if (!nccl_present()) return cuda::nccl::refusal();
  int version = 0;
  cuda::nccl::functions()->version(&version);
  return cuda::nccl_version_text(version);
}

}  // namespace halftone
