// For the tests of tests/kernels that compare kernels with the reference, on a GPU: the
// functions of the emulator that they call. A GPU has only its own order of threads.
#if HALFTONE_HAVE_CUDA
#include <halftone/backends/cuda/libraries.h>
#endif

#include "../cuda_emulation/emulator.h"

namespace halftone::emulation {

void set_thread_order(ThreadOrder /*order*/) {}
void set_block_order(uint64_t /*seed*/) {}
bool deferred() { return false; }
#if HALFTONE_HAVE_CUDA
bool uses_cudnn() { return cuda::libraries_wanted(); }
int64_t kernel_launches() { return cuda::kernels_started(); }
#else
bool uses_cudnn() { return false; }
int64_t kernel_launches() { return 0; }
#endif

}  // namespace halftone::emulation
