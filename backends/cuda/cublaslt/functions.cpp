// cuBLASLt, opened at run time: from the loader's path, or from the toolkit that this was built
// with.
#include <halftone/backends/cuda/cublaslt/functions.h>

#include <string>

#include <dlfcn.h>

#include <halftone/backends/cuda/versions.h>

namespace halftone::cuda::cublaslt {

namespace {
void* open_library() {
  const std::string name = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
  if (void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  return dlopen((HALFTONE_CUDA_LIBRARY_DIRECTORY "/" + name).c_str(), RTLD_NOW | RTLD_LOCAL);
}

/// Finds functions by name; remembers if one was missing.
struct Finder {
  void* library;
  bool complete = true;
  template <class F> void operator()(const char* name, F& function) {
    void* const address = dlsym(library, name);
    complete = complete && address;
    function = reinterpret_cast<F>(address);
  }
};

bool find_all(Finder find, Functions& f) {
  find("cublasLtGetVersion", f.version);
  find("cublasLtGetStatusString", f.status_text);
  find("cublasLtCreate", f.create);
  find("cublasLtMatrixLayoutCreate", f.layout_create);
  find("cublasLtMatrixLayoutDestroy", f.layout_destroy);
  find("cublasLtMatrixLayoutSetAttribute", f.layout_set);
  find("cublasLtMatmulDescCreate", f.product_create);
  find("cublasLtMatmulDescDestroy", f.product_destroy);
  find("cublasLtMatmulDescSetAttribute", f.product_set);
  find("cublasLtMatmulPreferenceCreate", f.preference_create);
  find("cublasLtMatmulPreferenceDestroy", f.preference_destroy);
  find("cublasLtMatmulPreferenceSetAttribute", f.preference_set);
  find("cublasLtMatmulAlgoGetHeuristic", f.heuristic);
  find("cublasLtMatmul", f.matmul);
  return find.complete;
}
}  // namespace

namespace {
struct Found {
  const Functions* functions = nullptr;
  std::string refusal{};
};
const Found& found() {
  static const Found once = []() -> Found {
    void* const library = open_library();
    if (!library) return {};
    static Functions table;
    if (!find_all(Finder{library}, table)) return {nullptr, "cuBLASLt lacks functions"};
    const std::string refused = cublaslt_refusal(table.version(), CUBLAS_VERSION);
    return {refused.empty() ? &table : nullptr, refused};
  }();
  return once;
}
}  // namespace

const Functions* functions() { return found().functions; }
std::string refusal() { return found().refusal; }

}  // namespace halftone::cuda::cublaslt
