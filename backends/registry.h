// For tests: replaces the CPU's backend by a test's own, to see what the upper layers ask of it.
#pragma once

#include <halftone/core/backend.h>

namespace halftone {

/// Makes `backend` serve CPU tensors in all threads until the scope ends.
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
