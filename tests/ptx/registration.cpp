// The part of libcudart that nvcc's host code calls: it registers fat binaries and kernels, and
// starts kernels. The emulated GPU (../cuda_emulation) implements the rest: streams, events,
// graphs, memory. Objects that nvcc made for a real GPU link with both, unchanged.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <cuda_runtime.h>

#include "../cuda_emulation/machine.h"
#include "fat_binary.h"
#include "launch.h"
#include "modules.h"

namespace halftone {

namespace emulation {
namespace {

/// The choices of set_thread_order() and set_block_order().
ptx::Order order = ptx::Order::in_step;
uint64_t block_order = number_from("HALFTONE_EMULATED_BLOCK_ORDER");

}  // namespace

void set_thread_order(ThreadOrder chosen) {
  static constexpr ptx::Order orders[] = {ptx::Order::in_step, ptx::Order::descending,
                                          ptx::Order::shuffled};
  order = orders[int(chosen)];
}
void set_block_order(uint64_t seed) { block_order = seed; }

}  // namespace emulation

namespace ptx {

namespace {

struct Registered {
  void* binary;
  std::string name;
};
std::map<const void*, Registered>& registered() {
  static auto* const instance = new std::map<const void*, Registered>;
  return *instance;
}

/// A fault of a kernel ends the program: memory may be wrong.
template <class F> auto or_end(F f) {
  try {
    return f();
  } catch (const std::exception& fault) {
    std::fprintf(stderr, "%s\n", fault.what());
    std::fflush(nullptr);
    std::_Exit(70);
  }
}

Range allocation_at(uint64_t address) {
  const auto found =
      emulation::machine().memory.allocation_at(reinterpret_cast<const void*>(address));
  return {reinterpret_cast<uint64_t>(found.data), found.bytes};
}

std::vector<std::byte> copied_parameters(const Kernel& kernel, void** arguments) {
  std::vector<std::byte> bytes(kernel.parameter_bytes);
  for (std::size_t n = 0; n < kernel.parameters.size(); ++n)
    std::memcpy(bytes.data() + kernel.parameters[n].offset, arguments[n],
                kernel.parameters[n].bytes);
  return bytes;
}

/// HALFTONE_PTX_BLOCKS=n: grids have at most n blocks. Every kernel has a grid-stride loop, so
/// fewer blocks are slower, never wrong (backends/cuda/launch.h).
unsigned fewer(unsigned blocks) {
  static const uint64_t most = emulation::number_from("HALFTONE_PTX_BLOCKS");
  return most == 0 ? blocks : unsigned(std::min<uint64_t>(blocks, most));
}

cudaError_t start(const cudaLaunchConfig_t& config, const void* function, void** arguments) {
  const auto found = registered().find(function);
  if (found == registered().end()) return emulation::failed(cudaErrorInvalidValue);
  if (config.dynamicSmemBytes != 0 || config.numAttrs != 0)
    throw Fault("[ptx] a launch with dynamic shared memory or attributes: " + found->second.name);
  Kernel& kernel = module_of(found->second.binary).kernel(found->second.name);
  const dim3 grid = config.gridDim, block = config.blockDim;
  Launch launch{{fewer(grid.x), grid.y, grid.z}, {block.x, block.y, block.z}};
  launch.order = emulation::order, launch.block_order = emulation::block_order;
  launch.find_allocation = allocation_at;
  return emulation::launch_work(config,
                                [=, &kernel, parameters = copied_parameters(kernel, arguments)] {
                                  or_end([&] { run(kernel, launch, parameters); });
                                });
}

/// <<<grid, block>>> stores its numbers here for the stub of the kernel.
std::vector<cudaLaunchConfig_t>& configurations() {
  static auto* const instance = new std::vector<cudaLaunchConfig_t>;
  return *instance;
}

}  // namespace
}  // namespace ptx
}  // namespace halftone

using namespace halftone::ptx;

extern "C" {

void** __cudaRegisterFatBinary(void* wrapper) {
  register_binary(wrapper);
  return static_cast<void**>(wrapper);
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void** binary, const char* stub, char*, const char* name, int, uint3*,
                            uint3*, dim3*, dim3*, int*) {
  registered()[stub] = {binary, name};
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* stub) {
  return *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(stub)), cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                               std::size_t shared, cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid, config.blockDim = block, config.dynamicSmemBytes = shared,
  config.stream = stream;
  return or_end([&] { return start(config, kernel, arguments); });
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared,
                                     cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid, config.blockDim = block, config.dynamicSmemBytes = shared,
  config.stream = stream;
  return configurations().push_back(config), 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared, void* stream) {
  const cudaLaunchConfig_t config = configurations().back();
  configurations().pop_back();
  *grid = config.gridDim, *block = config.blockDim, *shared = config.dynamicSmemBytes;
  *static_cast<cudaStream_t*>(stream) = config.stream;
  return cudaSuccess;
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function,
                                void** arguments) {
  return or_end([&] { return start(*config, function, arguments); });
}

}  // extern "C"
