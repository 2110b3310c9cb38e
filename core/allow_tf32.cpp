// One flag of the process, and an override for each thread.
#include <halftone/core/allow_tf32.h>

#include <atomic>

namespace halftone {

namespace {
std::atomic<bool> allowed{false};
thread_local std::optional<bool> allowed_here;
}  // namespace

bool allow_tf32() { return allowed_here.value_or(allowed.load(std::memory_order_relaxed)); }
void set_allow_tf32(bool allow) { allowed.store(allow, std::memory_order_relaxed); }

Tf32Scope::Tf32Scope(std::optional<bool> allow) : before_(allowed_here) {
  if (allow) allowed_here = allow;
}
Tf32Scope::~Tf32Scope() { allowed_here = before_; }

}  // namespace halftone
