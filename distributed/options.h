// The options of a step that several processes, or several batches of one process, make together.
#pragma once

#include <cstdint>
#include <optional>

#include <halftone/distributed/wire.h>

namespace halftone::distributed {

struct Options {
  /// The wire format of a batch's gradient; absent: that of the strategy, which is the gradient's
  /// own dtype unless a policy file says otherwise. One process rounds in the same way, so it
  /// computes the same as several.
  std::optional<WireFormat> wire{};
  /// Each rank stores the optimizer's state and the masters of its share of all elements, and
  /// updates only these (shards.h). With one process, or with an optimizer that is not elementwise,
  /// nothing is shared out. False: every rank stores and computes all of it.
  bool shard_optimizer = true;
  /// Parameters are sent together, up to this many bytes of gradients; larger ones alone.
  int64_t bucket_bytes = int64_t(25) << 20;
};

}  // namespace halftone::distributed
