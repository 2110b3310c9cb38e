// An observer at work on a training.
#pragma once

#include <memory>
#include <string_view>

#include <halftone/amp/training.h>
#include <halftone/policy/session/session.h>

namespace halftone::policy {

/// Until the scope ends, `observer` watches the passes of a training: through its session, or one
/// without rules, which stays there. It may outlive the training. Throws UsageError in the name of
/// `where` for a session of another kind, and if somebody observes already and `replaces` is false.
class Observation {
 public:
  Observation(std::string_view where, amp::Training& training, std::shared_ptr<Observer> observer,
              bool replaces = false);
  ~Observation();
  Observation(const Observation&) = delete;
  Observation& operator=(const Observation&) = delete;
  /// Null when the training is gone.
  std::shared_ptr<PolicySession> session() const { return session_.lock(); }

 private:
  std::weak_ptr<PolicySession> session_{};
  std::shared_ptr<Observer> before_{};
};

}  // namespace halftone::policy
