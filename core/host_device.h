// HT_HD marks a function that runs on the host and in CUDA kernels; it is the only macro of the
// project. On the host it also forces inlining: the CPU kernels are compiled once per instruction
// set from the same formulas, and an out-of-line copy of a formula compiled for AVX-512 must never
// be linked into baseline code.
#pragma once

#if defined(__CUDACC__)
#define HT_HD __host__ __device__ __forceinline__
#else
#define HT_HD [[gnu::always_inline]] inline
#endif
