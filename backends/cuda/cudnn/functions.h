// The cuDNN functions that halftone uses, looked up when the first GPU is used: programs that never
// use a GPU do not load it.
#pragma once

#include <string>

#include <cudnn_backend.h>
#include <cudnn_version.h>

namespace halftone::cuda::cudnn {

struct Functions {
  decltype(&cudnnGetVersion) version;
  decltype(&cudnnGetCudartVersion) cudart_version;
  decltype(&cudnnGetErrorString) error_string;
  decltype(&cudnnGetLastErrorString) last_error_string;
  decltype(&cudnnCreate) create;
  decltype(&cudnnSetStream) set_stream;
  decltype(&cudnnBackendCreateDescriptor) create_descriptor;
  decltype(&cudnnBackendDestroyDescriptor) destroy_descriptor;
  decltype(&cudnnBackendSetAttribute) set_attribute;
  decltype(&cudnnBackendGetAttribute) get_attribute;
  decltype(&cudnnBackendFinalize) finalize;
  decltype(&cudnnBackendExecute) execute;
};

/// Returns null if the library is missing, lacks functions, or was made for another CUDA.
const Functions* functions();
/// Returns the functions if cuDNN is known to exist: descriptors and plans exist only then.
inline const Functions& cudnn() { return *functions(); }
/// Returns why functions() is null.
std::string refusal();

}  // namespace halftone::cuda::cudnn
