// Uses the existing session, or adds one without rules.
#include <halftone/policy/telemetry/observation.h>

namespace halftone::policy {

Observation::Observation(std::string_view where, amp::Training& training,
                         std::shared_ptr<Observer> observer, bool replaces, int64_t steps) {
  if (!training.region().session)
    training.set_session(PolicySession::for_observers(training.model(), steps));
  const std::shared_ptr<amp::Session>& made = training.region().session;
  const std::shared_ptr<PolicySession> session(made, made->of_policy());
  if (!session)
    fail<UsageError>(where,
                     "the training has a session that is no PolicySession, and cannot be "
                     "observed. Use a strategy by name or by file.");
  before_ = session->observe(std::move(observer));
  if (before_ && !replaces) {
    session->observe(std::move(before_));
    fail<UsageError>(where, "the training is being observed already. Destroy that probe first.");
  }
  session_ = session;
}

Observation::~Observation() {
  if (const std::shared_ptr<PolicySession> session = session_.lock())
    session->observe(std::move(before_));
}

}  // namespace halftone::policy
