// One flag of the process.
#include <halftone/core/allow_tf32.h>

#include <atomic>

namespace halftone {

namespace {
std::atomic<bool> allowed{false};
}

bool allow_tf32() { return allowed.load(std::memory_order_relaxed); }
void set_allow_tf32(bool allow) { allowed.store(allow, std::memory_order_relaxed); }

}  // namespace halftone
