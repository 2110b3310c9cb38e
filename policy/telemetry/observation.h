// Attaches an observer to a training.
#pragma once

#include <memory>
#include <string_view>

#include <halftone/amp/training.h>
#include <halftone/policy/session.h>

namespace halftone::policy {

/// Makes `observer` watch a training's passes until the scope ends: through its session, or a new
/// one without rules, which stays and counts on from `steps`. May outlive the training. Throws UsageError in the name of
/// `where` for another kind of session, and if an observer is installed and `replaces` is false.
class Observation {
 public:
  Observation(std::string_view where, amp::Training& training, std::shared_ptr<Observer> observer,
              bool replaces = false, int64_t steps = 0);
  ~Observation();
  Observation(const Observation&) = delete;
  Observation& operator=(const Observation&) = delete;
  /// Returns null when the training has been destroyed.
  std::shared_ptr<PolicySession> session() const { return session_.lock(); }

 private:
  std::weak_ptr<PolicySession> session_{};
  std::shared_ptr<Observer> before_{};
};

}  // namespace halftone::policy
