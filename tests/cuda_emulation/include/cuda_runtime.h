// The part of the CUDA runtime and of CUDA C++ that backends/cuda uses, for g++ on a machine
// without a GPU. The .cu files compile against this header unchanged, and the emulator
// (../emulator.cpp) runs their kernels on the CPU, thread by thread. Only in the emulated build it
// comes before the toolkit's headers in the include path.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>
#include <utility>

// --- the language. Blocks run one after another, so shared variables of a block may be static.
#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static
#define __restrict__ __restrict

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
inline uint3 threadIdx{}, blockIdx{};
inline dim3 blockDim, gridDim;
inline constexpr int warpSize = 32;

namespace halftone::emulation {
/// The value that a lane of a warp brings to an exchange, and its result: see emulator.h.
uint64_t exchange(unsigned mask, uint64_t value, int (*source)(int lane, int argument),
                  int argument);
unsigned ballot(unsigned mask, bool value);
void block_barrier();
void warp_barrier(unsigned mask);
int lane();

template <class T> uint64_t to_bits(T value) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}
template <class T> T from_bits(uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}
}  // namespace halftone::emulation

inline void __syncthreads() { halftone::emulation::block_barrier(); }
inline void __syncwarp(unsigned mask = ~0u) { halftone::emulation::warp_barrier(mask); }
inline void __threadfence() {}
template <class T> T __shfl_sync(unsigned mask, T value, int from) {
  namespace e = halftone::emulation;
  return e::from_bits<T>(e::exchange(
      mask, e::to_bits(value), [](int, int source) { return source & 31; }, from));
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int bits) {
  namespace e = halftone::emulation;
  return e::from_bits<T>(e::exchange(
      mask, e::to_bits(value), [](int lane, int argument) { return lane ^ argument; }, bits));
}
template <class T> T __shfl_up_sync(unsigned mask, T value, unsigned by) {
  namespace e = halftone::emulation;
  return e::from_bits<T>(e::exchange(
      mask, e::to_bits(value), [](int lane, int n) { return lane < n ? lane : lane - n; },
      int(by)));
}
template <class T> T __shfl_down_sync(unsigned mask, T value, unsigned by) {
  namespace e = halftone::emulation;
  return e::from_bits<T>(e::exchange(
      mask, e::to_bits(value), [](int lane, int n) { return lane + n > 31 ? lane : lane + n; },
      int(by)));
}
inline unsigned __ballot_sync(unsigned mask, bool value) {
  return halftone::emulation::ballot(mask, value);
}
inline bool __any_sync(unsigned mask, bool value) { return __ballot_sync(mask, value) != 0; }
inline bool __all_sync(unsigned mask, bool value) { return __ballot_sync(mask, !value) == 0; }

template <class T> T atomicAdd(T* at, std::type_identity_t<T> value) {
  const T before = *at;
  *at = T(before + value);
  return before;
}
template <class T> T atomicMax(T* at, std::type_identity_t<T> value) {
  const T before = *at;
  if (value > before) *at = value;
  return before;
}
template <class T>
T atomicCAS(T* at, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  const T before = *at;
  if (before == expected) *at = value;
  return before;
}
template <class T> T atomicExch(T* at, std::type_identity_t<T> value) {
  return std::exchange(*at, value);
}
template <class T> T __ldg(const T* at) { return *at; }
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }

// --- the runtime
enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoKernelImageForDevice = 209,
  cudaErrorUnsupportedPtxVersion = 222,
  cudaErrorNotReady = 600,
  cudaErrorIllegalAddress = 700,
  cudaErrorStreamCaptureUnsupported = 900,
};
using cudaStream_t = struct CUstream_st*;
using cudaEvent_t = struct CUevent_st*;
using cudaGraph_t = struct CUgraph_st*;
using cudaGraphExec_t = struct CUgraphExec_st*;
enum cudaMemcpyKind {
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice
};
enum cudaStreamCaptureMode { cudaStreamCaptureModeRelaxed = 2 };
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone = 0, cudaStreamCaptureStatusActive = 1 };
inline constexpr unsigned cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2,
                          cudaHostAllocDefault = 0;
struct cudaDeviceProp {
  char name[256];
  std::size_t totalGlobalMem;
  int major, minor, multiProcessorCount;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  std::size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
  void* attrs = nullptr;
  unsigned numAttrs = 0;
};

const char* cudaGetErrorName(cudaError_t);
const char* cudaGetErrorString(cudaError_t);
cudaError_t cudaGetLastError();
cudaError_t cudaGetDeviceCount(int*);
cudaError_t cudaGetDevice(int*);
cudaError_t cudaSetDevice(int);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp*, int);
cudaError_t cudaDriverGetVersion(int*);
cudaError_t cudaRuntimeGetVersion(int*);
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total);
cudaError_t cudaMalloc(void**, std::size_t);
template <class T> cudaError_t cudaMalloc(T** at, std::size_t bytes) {
  return cudaMalloc(reinterpret_cast<void**>(at), bytes);
}
cudaError_t cudaFree(void*);
cudaError_t cudaHostAlloc(void**, std::size_t, unsigned);
cudaError_t cudaFreeHost(void*);
cudaError_t cudaMemcpyAsync(void*, const void*, std::size_t, cudaMemcpyKind, cudaStream_t);
cudaError_t cudaMemsetAsync(void*, int, std::size_t, cudaStream_t);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t*, unsigned);
cudaError_t cudaStreamDestroy(cudaStream_t);
cudaError_t cudaStreamSynchronize(cudaStream_t);
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode);
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t*);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t*, cudaGraph_t, unsigned long long flags = 0);
cudaError_t cudaGraphDestroy(cudaGraph_t);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t);
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t*, unsigned);
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t);
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned);
cudaError_t cudaEventSynchronize(cudaEvent_t);
cudaError_t cudaEventQuery(cudaEvent_t);
cudaError_t cudaEventElapsedTime(float*, cudaEvent_t, cudaEvent_t);
cudaError_t cudaEventDestroy(cudaEvent_t);

namespace halftone::emulation {
/// Runs `thread` once for every thread of the grid, or records it while a stream is captured.
cudaError_t launch(const cudaLaunchConfig_t& config, std::function<void()> thread);
}  // namespace halftone::emulation

template <class... P>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(P...),
                               std::type_identity_t<P>... arguments) {
  return halftone::emulation::launch(*config, [=] { kernel(arguments...); });
}
