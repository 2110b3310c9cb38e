// The facts besides the program that results on a device depend on: for checks that two processes,
// or two runs of one training, compute alike.
#pragma once

#include <string>

#include <halftone/core/device.h>

namespace halftone {

/// Returns the kernels, libraries and hardware that compute on a device, without anything that
/// changes during a run: "cpu: avx512 kernels, oneDNN 3.1". Defined in backends/registry.cpp.
std::string kernels_of(Device device);

/// Returns the number of threads of this thread's parallel regions, as the program has set it and
/// OpenMP's limits allow, even if other programs take cores and regions are smaller. Defined in
/// backends/team.cpp.
int cpu_threads();

}  // namespace halftone
