// Task 9: autocast with a cast cache that survives the traps. Write what follows in about 60 lines,
// then run scripts/exercise.sh 9. given.h has the tape.
#pragma once

#include <map>
#include <stdexcept>

#include "given.h"

/// A region: from its constructor to its destructor, operand() casts to `dtype`. Regions nest; the
/// inner one counts. Dtype::f32 turns autocast off inside.
///
/// - A region belongs to the thread that made it. Another thread has no region, and its own cache.
/// - When a region ends, also by an exception, the region around it counts again.
/// - When the outermost region of a thread ends, the cache is empty: it keeps no memory.
class Autocast {
 public:
  explicit Autocast(Dtype dtype) { throw std::logic_error("Autocast is not written yet"); }
  ~Autocast() {}
  Autocast(const Autocast&) = delete;
};

/// Returns what an operation gets for its input x:
///
///   1. outside of regions, or the region is f32           x itself
///   2. x is not f32                                       x itself, also if its dtype is another
///                                                         short one than the region's
///   3. x is a weight: a leaf that requires a gradient     its cast, from the cache if possible
///   4. otherwise                                          cast(x, dtype of the region), not cached
///
/// The first line that applies counts.
///
/// As long as a weight does not change, it is cast once for each dtype, until the outermost region
/// ends. Changes of other weights do not matter. The traps:
///
/// - write() changes the number of a weight inside a region: the cached cast is stale, and a new
///   one takes its place. Storage has a version.
/// - replace() gives a weight other memory, whose version is 0 as well. If an entry does not own
///   the memory, it can be freed and used again at the same address.
/// - A forward pass under NoGrad (an evaluation) comes first: a cast that was not recorded has no
///   history, and the training pass after it would leave the weight without a gradient. Every cast
///   for the cache is recorded, whatever the mode; EnableGrad does that. Other casts follow it.
/// - A weight under bf16 in one region and under f16 in a region inside has two casts.
/// - Two weights may share memory. Each has a cast of its own, because each has its own gradient.
inline Var operand(const Var& x) { throw std::logic_error("operand is not written yet"); }

/// Returns the number of casts in the cache of this thread.
inline std::size_t cached() { throw std::logic_error("cached is not written yet"); }

// Example:
//
//   Var w = leaf(1.001f, true), x = leaf(3, false);
//   {
//     Autocast region(Dtype::bf16);
//     backward(multiply(operand(x), operand(w)));    // two casts are made, one is cached
//     operand(w);                                    // the same Var as above
//   }
//   // w->gradient is 3, cached() is 0, operand(w) is w
