// The environment that the bits of a training depend on, besides its own state.
#pragma once

#include <string>

#include <halftone/core/device.h>

namespace halftone::train {

/// Returns "halftone 0.1.0, cpu: avx2 kernels, ..., 2 threads". Two runs of one build with equal
/// texts compute the same bits. With portable bits (core/device.h) they leave out the number
/// of threads.
std::string environment_of(Device device);

}  // namespace halftone::train
