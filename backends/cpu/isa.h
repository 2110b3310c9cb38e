// The instruction set of the CPU backend: the best that the CPU has, capped by HALFTONE_MAX_ISA
// (baseline, avx2, avx512, avx512_bf16 or amx), so that any machine can test the code of smaller
// ones.
#pragma once

#include <vector>

#include <halftone/backends/cpu/simd/kernels.h>

namespace halftone {

/// Returns the SIMD kernels in use. The instruction set is decided once; the order of sums is that
/// of portable_bits().
const simd::Kernels& simd_kernels();
/// Returns the tables that this build has and this CPU supports, smallest first; HALFTONE_MAX_ISA
/// does not limit them. For tests.
std::vector<const simd::Kernels*> supported_simd_kernels();
/// Returns those of portable bits (core/device.h), one of each instruction set. For tests.
std::vector<const simd::Kernels*> portable_simd_kernels();
/// Return whether simd/panels.h may be called, and simd/amx.h.
bool has_bf16_products();
bool use_amx();

}  // namespace halftone
