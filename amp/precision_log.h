// What autocast did: for every operation that ran in a region, how often, what was cast to what,
// how many bytes that wrote, how often the cache served, and what the casts destroyed - values that
// became zero by underflow or infinite by overflow.
//
//   amp::PrecisionLog log;
//   amp::autocast(f16, [&] { return loss_of(model, batch); });
//   std::cout << log;
#pragma once

#include <cstdint>
#include <iosfwd>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include <halftone/amp/cast_policy.h>
#include <halftone/core/tensor.h>

namespace halftone::amp {

/// Listens to the regions of its thread from construction to destruction (the innermost log does).
/// Counting zeros and infinities reads every cast tensor: a log costs time, no log costs nothing.
class PrecisionLog {
 public:
  /// Calls of one operation that were decided alike.
  struct Entry {
    std::string op;
    CastDecision decided;
    std::string runs_in;  // dtype of the inputs the kernel saw, "bf16 -> f32" if it widens
    int64_t calls = 0;
    int64_t casts = 0;  // inputs that were replaced by casts, cached ones included
    int64_t cache_hits = 0;
    int64_t bytes = 0;        // written by the casts that were made
    int64_t to_zero = 0;      // elements that were not zero and are after the cast
    int64_t to_infinity = 0;  // elements that were finite and are not after the cast
  };
  /// One decision, as the region reports it.
  struct Event {
    const OpInfo* op;
    CastDecision decided;
    std::span<const Tensor> before, after;
    bool f32_result;
    int64_t cache_hits, bytes;
  };

  PrecisionLog();
  ~PrecisionLog();
  PrecisionLog(const PrecisionLog&) = delete;
  PrecisionLog& operator=(const PrecisionLog&) = delete;
  static PrecisionLog* active();

  void record(const Event& event);
  void clear();
  /// In the order in which the operations first ran.
  std::vector<Entry> entries() const;
  /// Sums over all entries, named "total".
  Entry total() const;

 private:
  using Key = std::tuple<std::string, CastDecision, std::string>;
  std::map<Key, std::pair<std::size_t, Entry>> entries_;  // with the position of the first call
  PrecisionLog* before_;
};

/// A table, one line per entry, then the total.
std::ostream& operator<<(std::ostream& out, const PrecisionLog& log);

}  // namespace halftone::amp
