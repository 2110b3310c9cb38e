// cuDNN, opened at run time: the one that this build was configured with, or the loader's.
#include <halftone/backends/cuda/cudnn/functions.h>

#include <cuda_runtime_api.h>

#include <halftone/backends/cuda/versions.h>
#include <halftone/backends/opened_library.h>

namespace halftone::cuda::cudnn {

namespace {
using Found = LibraryFunctions<Functions>;

bool find_all(OpenedLibrary& library, Functions& f) {
  library.find("cudnnGetVersion", f.version);
  library.find("cudnnGetCudartVersion", f.cudart_version);
  library.find("cudnnGetErrorString", f.error_string);
  library.find("cudnnGetLastErrorString", f.last_error_string);
  library.find("cudnnCreate", f.create);
  library.find("cudnnSetStream", f.set_stream);
  library.find("cudnnBackendCreateDescriptor", f.create_descriptor);
  library.find("cudnnBackendDestroyDescriptor", f.destroy_descriptor);
  library.find("cudnnBackendSetAttribute", f.set_attribute);
  library.find("cudnnBackendGetAttribute", f.get_attribute);
  library.find("cudnnBackendFinalize", f.finalize);
  library.find("cudnnBackendExecute", f.execute);
  return library.complete();
}

Found found_library() {
  const std::string name = "libcudnn.so." + std::to_string(CUDNN_MAJOR);
  OpenedLibrary library({HALFTONE_CUDNN_PATH, name});
  if (!library.is_open())
    return {{}, library.error() + ". Install cuDNN " + std::to_string(CUDNN_MAJOR)};
  Found found;
  if (!find_all(library, found.functions)) return {{}, "cuDNN lacks functions"};
  // With another CUDA than its own it may fail at unpredictable points.
  found.refusal = cudnn_refusal(int(found.functions.cudart_version()), CUDART_VERSION);
  return found;
}
}  // namespace

const Functions* functions() { return Found::once<found_library>().get(); }
std::string refusal() { return Found::once<found_library>().refusal; }

}  // namespace halftone::cuda::cudnn
