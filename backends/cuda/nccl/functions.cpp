// NCCL, opened at run time: from the loader's path, or from the toolkit that this was built with.
#include <halftone/backends/cuda/nccl/functions.h>

#include <string>

#include <dlfcn.h>

#include <halftone/backends/cuda/libraries.h>
#include <halftone/backends/cuda/nccl/nccl.h>
#include <halftone/backends/cuda/versions.h>

namespace halftone {

namespace cuda::nccl {

namespace {
struct Found {
  Functions functions{};
  std::string refusal{};
};

/// Whether all of them are there.
bool find_all(void* library, Functions& f) {
  bool complete = true;
  const auto find = [&]<class F>(const char* name, F& function) {
    function = reinterpret_cast<F>(dlsym(library, name));
    complete = complete && function;
  };
  find("ncclGetVersion", f.version);
  find("ncclGetErrorString", f.error_text);
  find("ncclGetLastError", f.last_error);
  find("ncclGetUniqueId", f.unique_id);
  find("ncclCommInitRankConfig", f.init);
  find("ncclCommGetAsyncError", f.async_error);
  find("ncclGroupStart", f.group_start);
  find("ncclGroupEnd", f.group_end);
  find("ncclSend", f.send);
  find("ncclRecv", f.receive);
  return complete;
}

Found found_library() {
  Found found;
  if (!libraries_wanted()) return {{}, "HALFTONE_CUDA_LIBRARIES=off"};
  constexpr const char* name = "libnccl.so.2";
  void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  const char* const why = library ? nullptr : dlerror();
  const std::string missing = why ? why : "";
  if (!library)
    library = dlopen((HALFTONE_CUDA_LIBRARY_DIRECTORY "/" + std::string(name)).c_str(),
                     RTLD_NOW | RTLD_LOCAL);
  if (!library) return {{}, missing + ". Install NCCL (libnccl2)"};
  if (!find_all(library, found.functions)) return {{}, "NCCL lacks functions"};
  int version = 0;
  found.functions.version(&version);
  found.refusal = nccl_refusal(version, NCCL_VERSION_CODE);
  return found;
}

const Found& found() {
  static const Found once = found_library();
  return once;
}
}  // namespace

const Functions* functions() { return found().refusal.empty() ? &found().functions : nullptr; }
std::string refusal() { return found().refusal; }

}  // namespace cuda::nccl

bool nccl_present() { return cuda::nccl::functions() != nullptr; }

std::string nccl_description() {
  if (!nccl_present()) return cuda::nccl::refusal();
  int version = 0;
  cuda::nccl::functions()->version(&version);
  return cuda::nccl_version_text(version);
}

}  // namespace halftone
