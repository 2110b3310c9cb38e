// The facts besides the program that results on a device depend on: for checks that two processes,
// or two runs of one training, compute alike.
#pragma once

#include <string>

#include <halftone/core/device.h>

namespace halftone {

/// Returns the kernels, libraries and hardware that compute on a device, without anything that
/// changes during a run: "cpu: avx512 kernels, oneDNN 3.1". Defined in backends/registry.cpp.
std::string kernels_of(Device device);

/// Returns the most threads that a parallel region of the calling thread gets:
/// omp_get_max_threads(), but not more than OMP_THREAD_LIMIT, and one where OMP_MAX_ACTIVE_LEVELS
/// allows no further region. OpenMP may give fewer (OMP_DYNAMIC, other regions under the same
/// limit), so every kernel must be right for any team. Defined in backends/team.cpp.
int cpu_threads();

}  // namespace halftone
