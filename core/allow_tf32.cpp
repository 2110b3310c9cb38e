// One flag of the process, and an override for each thread.
#include <halftone/core/allow_tf32.h>

#include <atomic>

#include <halftone/core/thread_slot.h>

namespace halftone {

namespace {
std::atomic<bool> allowed{false};
thread_local std::optional<bool> allowed_here;
constinit thread_local ScopeOrder<std::optional<bool>> scopes;
}  // namespace

bool allow_tf32() { return allowed_here.value_or(allowed.load(std::memory_order_relaxed)); }
void set_allow_tf32(bool allow) { allowed.store(allow, std::memory_order_relaxed); }

Tf32Scope::Tf32Scope(std::optional<bool> allow) : number_(scopes.begin()), before_(allowed_here) {
  if (allow) allowed_here = allow;
}
Tf32Scope::~Tf32Scope() { scopes.end(number_, before_, allowed_here); }

}  // namespace halftone
