// A build without the CUDA backend.
#include <halftone/backends/registry.h>

namespace halftone {
Backend* cuda_backend(int) { return nullptr; }
std::string cuda_description() {
  return "this build has no CUDA backend (configure with nvcc on PATH)";
}
std::string cuda_kernels(int) { return ""; }
}  // namespace halftone
