// What the runtime of the emulator needs of its threads.
#pragma once

#include <functional>

#include <cuda_runtime.h>

#include "emulator.h"

namespace halftone::emulation {

/// Runs `thread` for every thread of every block, in the order of set_thread_order().
void run_grid(dim3 grid, dim3 threads, const std::function<void()>& thread);

/// In a thread of a kernel: it rests while others go past so many waits. Elsewhere nothing happens.
void hand_over(int turns);

}  // namespace halftone::emulation
