// How several processes, or several batches of one process, make one step.
#pragma once

#include <cstdint>
#include <optional>

#include <halftone/core/dtype.h>

namespace halftone::distributed {

struct Options {
  /// What a batch's gradient is rounded to on its way to the sum: f32, bf16 or f16; absent: its
  /// own dtype, so that nothing is lost. One process rounds alike, so that it computes what many
  /// would.
  std::optional<DType> wire{};
  /// Parameters are sent together, up to so many bytes of gradients; larger ones alone.
  int64_t bucket_bytes = int64_t(25) << 20;
};

}  // namespace halftone::distributed
