// Autocast: inside a region, operations run in the dtypes that a policy gives them. The casts are
// recorded, so backward needs nothing more.
//
//   Tensor loss = amp::autocast(bf16, [&] { return cross_entropy(model(images), labels); });
//   loss.backward();                                  // outside: backward needs no region
//
// Regions belong to a thread, nest, can be disabled inside another region, and also end by an
// exception. All regions inside the outermost share its cast cache, which ends with it. Mirrors
// torch.autocast.
#pragma once

#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include <halftone/amp/cast_cache.h>
#include <halftone/amp/cast_policy.h>
#include <halftone/autograd/slots.h>
#include <halftone/core/language.h>

namespace halftone::amp {

class Session;  // amp/session.h

/// The settings of a region, as a value.
struct Region {
  std::shared_ptr<const CastPolicy> policy{};  // null: the default policy
  /// The dtype of low_precision operations: bf16 or f16. Absent: tensors on the CPU are not cast.
  std::optional<DType> dtype = bf16;
  /// The same for tensors on a GPU; absent: as `dtype`.
  std::optional<DType> cuda_dtype{};
  bool enabled = true;  // false: no casts here, also inside another region
  bool cache = true;    // false: every use of a weight casts it again
  /// The session of a policy file; it also works in regions without casts.
  std::shared_ptr<Session> session{};
};

/// Hears of each cast that a region of this thread makes; null: nothing hears.
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
/// region inside it, operations in the regions that are left throw UsageError, or else the next
/// region does.
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
  std::shared_ptr<Session> outer_session_;  // the outer session and its pass
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

/// Returns whether this thread is in a region that casts, and the dtype that it casts to.
bool autocast_enabled();
std::optional<DType> autocast_dtype(Device device = Device::cpu());
/// Returns how many tensors the regions of this thread have cast until now; casts that a cache had
/// count as well.
int64_t casts_made();
/// Returns the cache of the outermost region of this thread; null outside.
const CastCache* active_cast_cache();

}  // namespace halftone::amp
