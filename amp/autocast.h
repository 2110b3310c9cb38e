// Autocast: regions, the cache of casts, and the log of casts.
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include <halftone/amp/cast_policy.h>
#include <halftone/autograd/slots.h>
#include <halftone/core/language.h>
#include <halftone/core/tensor.h>

namespace halftone::policy {
class Session;  // amp/session.h
}

namespace halftone::amp {

// Casts of parameters, kept until a region ends, so that a weight used ten times is cast once. An
// entry holds its source and knows the storage, its version and the dtype of the cast. So a reused
// address, an updated weight or a second dtype cannot give a wrong hit.

struct CacheCounters {
  int64_t hits = 0, misses = 0, bytes = 0;  // bytes: of all casts made
};

class CastCache {
 public:
  /// Returns whether to keep casts of x: an f32 leaf that requires a gradient and is not a view.
  static bool serves(const Tensor& x);
  /// Returns x cast to `dtype`, from the cache if it has this cast. Autograd records a new cast
  /// even under NoGrad, so that training can use it later. Its bytes count as MemoryUse::cast_cache
  /// until the last graph with it is destroyed. channels_last: a new cast has this order in memory.
  Tensor cast(const Tensor& x, DType dtype, bool channels_last = false);
  void clear() { entries_.clear(); }
  std::size_t size() const { return entries_.size(); }
  const CacheCounters& counters() const { return counters_; }

 private:
  struct Key {
    const AutogradMeta* source;  // the leaf: gradients must reach this one
    DType dtype;
    bool operator==(const Key&) const = default;
  };
  struct HashKey {
    std::size_t operator()(const Key& key) const {
      return std::hash<const void*>{}(key.source) ^ std::size_t(key.dtype);
    }
  };
  struct Entry {
    Tensor source;                     // keeps the leaf alive
    std::shared_ptr<Storage> storage;  // and the data it was cast from
    uint64_t version;
    Tensor result;
  };
  std::unordered_map<Key, Entry, HashKey> entries_;
  CacheCounters counters_;
};

// Autocast: inside a region, operations run in the dtypes that a policy gives them. The casts are
// recorded, so backward needs nothing more.
//
//   Tensor loss = amp::autocast(bf16, [&] { return cross_entropy(model(images), labels); });
//   loss.backward();                                  // outside: backward needs no region
//
// Regions belong to a thread, nest, can be disabled inside another region, and also end by an
// exception. All regions inside the outermost share its cast cache, which ends with it. Mirrors
// torch.autocast.

/// The settings of a region, as a value.
struct Region {
  std::shared_ptr<const CastPolicy> policy{};  // null: the default policy
  /// The dtype of low_precision operations: bf16 or f16. Absent: tensors on the CPU are not cast.
  std::optional<DType> dtype = bf16;
  /// The same for tensors on a GPU; absent: as `dtype`.
  std::optional<DType> cuda_dtype{};
  bool enabled = true;  // false: no casts here, also inside another region
  bool cache = true;    // false: every use of a weight casts it again
  /// The session that applies the rules of a policy file; it also works in regions without casts.
  std::shared_ptr<policy::Session> session{};
};

/// While a watcher is in its thread's slot, regions of that thread call casting() before each cast.
class CastWatcher {
 public:
  virtual ~CastWatcher() = default;
  virtual void casting(const Tensor& x, DType to) = 0;
};
using CastWatcherSlot = Slot<CastWatcher*>;
using CastWatcherScope = CastWatcherSlot::Scope;

/// A region from construction to the end of the scope, in this thread. Throws DTypeError for dtypes
/// other than bf16 and f16. If it is destroyed in another thread, the region stays active in its
/// own thread, and a message on stderr says so: a destructor cannot throw. If it ends before a
/// region inside it, operations and new regions throw UsageError until all regions have ended. If
/// no operation has reported the mistake by then, the next region does.
class Autocast {
 public:
  [[nodiscard]] explicit Autocast(const Region& region);
  [[nodiscard]] explicit Autocast(DType dtype) : Autocast(Region{.dtype = dtype}) {}
  /// Returns a region without casts. Tensors keep their dtypes: cast them by hand.
  [[nodiscard]] static Autocast disabled() { return Autocast(Region{.enabled = false}); }
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  std::thread::id thread_ = std::this_thread::get_id();
  std::shared_ptr<policy::Session> outer_session_;  // the outer session and its pass
  uint64_t outer_pass_;
  uint64_t outer_;                   // the number of the region around this one; 0: none
  std::unique_ptr<CallScope> root_;  // the site of operations outside of every module
  std::optional<CasterScope> scope_;
  uint64_t number_;
};

/// Returns function(), called inside a region.
template <class F> decltype(auto) autocast(const Region& region, F&& function) {
  const Autocast scope(region);
  return std::forward<F>(function)();
}
template <class F> decltype(auto) autocast(DType dtype, F&& function) {
  return autocast(Region{.dtype = dtype}, std::forward<F>(function));
}

/// Return whether this thread's region casts, and its dtype for tensors of `device` (empty: none).
bool autocast_enabled();
std::optional<DType> autocast_dtype(Device device = Device::cpu());
/// Returns how many tensors the regions of this thread have cast until now; casts that were found
/// in a cache count as well.
int64_t casts_made();
/// Returns the cache of the outermost region of this thread; null outside.
const CastCache* active_cast_cache();

// The log of autocast. For every operation that ran in a region: the number of calls, the casts,
// the bytes that they wrote, the cache hits, and the values that casts destroyed: they became zero
// by underflow or infinite by overflow.
//
//   amp::PrecisionLog log;
//   amp::autocast(f16, [&] { return loss_of(model, batch); });
//   std::cout << log;

/// Records what autocast does on its thread while the log exists. If logs are nested, only the
/// innermost records. It reads every cast tensor, which costs time; without a log nothing is read.
class PrecisionLog {
 public:
  /// Calls of one operation with equal decisions, in the same dtype.
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
  /// One decision, reported by the region, with the inputs before and after their casts.
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
