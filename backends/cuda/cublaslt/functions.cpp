// cuBLASLt, opened at run time: from the loader's path, or from the toolkit that this build used.
#include <halftone/backends/cuda/cublaslt/functions.h>

#include <string>

#include <halftone/backends/cuda/libraries.h>
#include <halftone/backends/opened_library.h>

namespace halftone::cuda::cublaslt {

namespace {
bool find_all(OpenedLibrary& library, Functions& f) {
  library.find("cublasLtGetVersion", f.version);
  library.find("cublasLtGetStatusString", f.status_text);
  library.find("cublasLtCreate", f.create);
  library.find("cublasLtMatrixLayoutCreate", f.layout_create);
  library.find("cublasLtMatrixLayoutDestroy", f.layout_destroy);
  library.find("cublasLtMatrixLayoutSetAttribute", f.layout_set);
  library.find("cublasLtMatmulDescCreate", f.product_create);
  library.find("cublasLtMatmulDescDestroy", f.product_destroy);
  library.find("cublasLtMatmulDescSetAttribute", f.product_set);
  library.find("cublasLtMatmulPreferenceCreate", f.preference_create);
  library.find("cublasLtMatmulPreferenceDestroy", f.preference_destroy);
  library.find("cublasLtMatmulPreferenceSetAttribute", f.preference_set);
  library.find("cublasLtMatmulAlgoGetHeuristic", f.heuristic);
  library.find("cublasLtMatmul", f.matmul);
  return library.complete();
}

using Found = LibraryFunctions<Functions>;

Found found_library() {
  const std::string name = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
  OpenedLibrary library({name, HALFTONE_CUDA_LIBRARY_DIRECTORY "/" + name});
  if (!library.is_open()) return {{}, "no cuBLASLt found"};
  Found found;
  if (!find_all(library, found.functions)) return {{}, "cuBLASLt lacks functions"};
  found.refusal = cublaslt_refusal(found.functions.version(), CUBLAS_VERSION);
  return found;
}
}  // namespace

const Functions* functions() { return Found::once<found_library>().get(); }
std::string refusal() { return Found::once<found_library>().refusal; }

}  // namespace halftone::cuda::cublaslt
