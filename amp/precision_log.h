// The log of autocast. For every operation that ran in a region: the number of calls, the casts,
// the bytes that they wrote, the cache hits, and the values that casts destroyed: they became zero
// by underflow or infinite by overflow.
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

/// Records the regions of its thread from construction to destruction (only the innermost log
/// does). It reads every cast tensor, which costs time; without a log nothing is read.
class PrecisionLog {
 public:
  /// Calls of one operation with equal decisions.
  struct Entry {
    std::string op;
    CastDecision decided;
    std::string runs_in;  // dtype of the kernel's inputs, "bf16 -> f32" if it widens
    int64_t calls = 0;
    int64_t casts = 0;  // inputs that were replaced by casts, cached ones included
    int64_t cache_hits = 0;
    int64_t bytes = 0;        // written by the casts that were made
    int64_t to_zero = 0;      // elements that became zero by the cast
    int64_t to_infinity = 0;  // elements that became infinite by the cast
  };
  /// One decision, reported by the region.
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
  /// Returns entries in the order in which the operations first ran.
  std::vector<Entry> entries() const;
  /// Returns sums over all entries, named "total".
  Entry total() const;

 private:
  using Key = std::tuple<std::string, CastDecision, std::string>;
  std::map<Key, std::pair<std::size_t, Entry>> entries_;  // with the position of the first call
  int number_;
  PrecisionLog* before_;
};

/// Prints a table, one line per entry, then the total.
std::ostream& operator<<(std::ostream& out, const PrecisionLog& log);

}  // namespace halftone::amp
