// A build without NCCL: the host transfers the messages of GPUs.
#include <halftone/backends/registry.h>

namespace halftone {

bool nccl_present() { return false; }
std::string nccl_description() {
  return "this build has none; install the CUDA toolkit and nccl.h (libnccl-dev), and configure "
         "again";
}
std::unique_ptr<Communicator> start_nccl(Communicator&, Device) { return nullptr; }

}  // namespace halftone
