// Which instruction set the CPU backend uses: the best that the CPU has, capped by HALFTONE_MAX_ISA
// (baseline, avx2, avx512 or avx512_bf16), so that any machine can test what smaller ones run.
#pragma once

#include <halftone/backends/cpu/simd/kernels.h>

namespace halftone {

/// The SIMD kernels in use; decided once.
const simd::Kernels& simd_kernels();

}  // namespace halftone
