// For tests: a backend of their own in the place of the CPU's, to see what the layers above ask of
// it.
#pragma once

#include <halftone/core/backend.h>

namespace halftone {

/// Until the scope ends, CPU tensors are served by `backend`, in all threads.
class CpuBackendReplacement {
 public:
  explicit CpuBackendReplacement(Backend& backend);
  ~CpuBackendReplacement();
  CpuBackendReplacement(const CpuBackendReplacement&) = delete;
  CpuBackendReplacement& operator=(const CpuBackendReplacement&) = delete;

 private:
  Backend* before_;
};

}  // namespace halftone
