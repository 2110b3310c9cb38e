// ptxas may fuse a product and a sum without .rn to one multiply-add. With HALFTONE_PTX_FUSE=1 the
// interpreter fuses wherever ptxas may: results must be right either way.
#pragma once

#include <cstdint>

#include "program.h"

namespace halftone::ptx {

bool fuses();
void fuse(Kernel& kernel);
/// Returns the number of fused multiply-adds.
int64_t fused_sums();

}  // namespace halftone::ptx
