// Workloads whose shapes were not chosen for speed: batches of 1, 3 and 10, widths of 333 and 1000,
// channels of 48 and 96, heads of 48, images of 45 x 37, depthwise windows of 7 x 7. Code that is
// fast only for powers of two is slow here. bench/train_step measures them as --workload untuned;
// its PyTorch peer has the same models.
#pragma once

#include <optional>

#include <halftone/lab/workload_data.h>

namespace halftone::lab {

std::vector<std::string> untuned_names();
/// Returns a workload on the CPU; nullopt for other names.
std::optional<SyntheticWorkload> make_untuned(const std::string& name);

}  // namespace halftone::lab
