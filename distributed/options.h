// How several processes, or several batches of one process, make one step.
#pragma once

#include <cstdint>
#include <optional>

#include <halftone/distributed/wire.h>

namespace halftone::distributed {

struct Options {
  /// What a batch's gradient is on its way to the sum; absent: as the strategy says, which is its
  /// own dtype if a policy file does not say otherwise. One process rounds alike, so that it
  /// computes what many would.
  std::optional<WireFormat> wire{};
  /// Each rank keeps the optimizer's state and the masters of its share of all elements, and
  /// updates these alone (shards.h). Where one process trains, or the optimizer is not elementwise,
  /// there is nothing to share out. Off: every rank keeps and computes all of it.
  bool shard_optimizer = true;
  /// Parameters are sent together, up to so many bytes of gradients; larger ones alone.
  int64_t bucket_bytes = int64_t(25) << 20;
};

}  // namespace halftone::distributed
