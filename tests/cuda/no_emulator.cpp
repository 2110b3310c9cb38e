// The tests of tests/cuda_emulation that compare kernels with the reference, on a GPU: what they
// ask of the emulated one beside the backend. A GPU has one order of threads, its own.
#include <halftone/backends/cuda/library_calls.h>

#include "../cuda_emulation/emulator.h"

namespace halftone::emulation {

void set_thread_order(ThreadOrder /*order*/) {}
void set_block_order(uint64_t /*seed*/) {}
bool deferred() { return false; }
int64_t kernel_launches() { return cuda::kernels_started(); }

}  // namespace halftone::emulation
