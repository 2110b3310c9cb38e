// The functions for threads that the runtime of the emulator needs.
#pragma once

#include <functional>

#include <cuda_runtime.h>

#include "emulator.h"

namespace halftone::emulation {

/// Runs `thread` for every thread of every block, in the order of set_thread_order().
void run_grid(dim3 grid, dim3 threads, const std::function<void()>& thread);

/// In a thread of a kernel: lets other threads do `turns` waits first. Elsewhere it does
/// nothing.
void hand_over(int turns);

}  // namespace halftone::emulation
