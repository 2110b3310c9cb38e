// For the tests of tests/cuda_emulation that compare kernels with the reference, on a GPU: the
// functions of the emulator that they call. A GPU has only its own order of threads.
#include <halftone/backends/cuda/libraries.h>

#include "../cuda_emulation/emulator.h"

namespace halftone::emulation {

void set_thread_order(ThreadOrder /*order*/) {}
void set_block_order(uint64_t /*seed*/) {}
bool deferred() { return false; }
int64_t kernel_launches() { return cuda::kernels_started(); }

}  // namespace halftone::emulation
