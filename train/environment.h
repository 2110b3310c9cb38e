// On what the bits of a training depend besides its own state.
#pragma once

#include <string>

#include <halftone/core/device.h>

namespace halftone::train {

/// "halftone 0.1.0, cpu: avx2 kernels, ..., 2 threads": two runs of one build with equal texts
/// compute the same bits.
std::string environment_of(Device device);

}  // namespace halftone::train
