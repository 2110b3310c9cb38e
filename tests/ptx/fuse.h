// ptxas may make one multiply-add of a product and a sum that do not say .rn. With
// HALFTONE_PTX_FUSE=1 the interpreter does so wherever it may: results must be good either way.
#pragma once

#include <cstdint>

#include "program.h"

namespace halftone::ptx {

bool fuses();
void fuse(Kernel& kernel);
/// Multiply-adds that were made so far.
int64_t fused_sums();

}  // namespace halftone::ptx
