// Parallel regions of a build without threads: no thread can lack a core.
#include <halftone/backends/team.h>

#include <halftone/core/device.h>

namespace halftone {

void look_around() {}
bool crowded() { return false; }
double seconds_alone() { return 0; }
int core_to_leave() { return -1; }
void leave_core(int) {}
PretendCrowded::PretendCrowded(double) {}
PretendCrowded::~PretendCrowded() = default;
int cpu_threads() { return 1; }

}  // namespace halftone
