// What every gather asks of its indices.
#pragma once

#include <halftone/core/tensor.h>

namespace halftone::reference {

/// Throws UsageError for an index, i64 of any strides, outside 0 .. size - 1: before anything runs
/// in parallel, where nothing may throw.
void check_indices(const Tensor& index, int64_t size);

}  // namespace halftone::reference
