// The check that every gather makes of its indices.
#pragma once

#include <halftone/core/tensor.h>

namespace halftone::reference {

/// Throws UsageError for an index outside 0 .. size - 1 (i64, any strides). Runs before parallel
/// loops, which must not throw.
void check_indices(const Tensor& index, int64_t size);

}  // namespace halftone::reference
