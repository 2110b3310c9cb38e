// The loop of resizing and pooling: each thread gets some rows of pixels of NHWC images.
#pragma once

#include <halftone/backends/cpu/staging.h>

namespace halftone::cpu {

/// Calls body(image, row, scratch) for all rows of images, in parallel; scratch has `scratch_size`
/// floats per thread.
template <class Body>
void each_image_row(int64_t images, int64_t rows, int64_t scratch_size, const Body& body) {
  constexpr int64_t rows_of_task = 8;
  parallel_pieces(images * rows, rows_of_task, [&](int64_t begin, int64_t end) {
    Workspace<float> scratch(scratch_size);
    for (int64_t row = begin; row < end; ++row) body(row / rows, row % rows, scratch.data());
  });
}

}  // namespace halftone::cpu
