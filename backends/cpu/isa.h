// Which instruction set the CPU backend uses: the best that the CPU has, capped by HALFTONE_MAX_ISA
// (baseline, avx2, avx512, avx512_bf16 or amx), so that any machine can test what smaller ones run.
#pragma once

#include <vector>

#include <halftone/backends/cpu/simd/kernels.h>

namespace halftone {

/// The SIMD kernels in use; decided once.
const simd::Kernels& simd_kernels();
/// The tables that this build has and this CPU runs, smallest first; HALFTONE_MAX_ISA does not
/// limit them. For tests.
std::vector<const simd::Kernels*> supported_simd_kernels();
/// Whether simd/panels.h may be called, and simd/amx.h.
bool has_bf16_products();
bool use_amx();

}  // namespace halftone
