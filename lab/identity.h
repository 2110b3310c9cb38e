// What a run was: everything on which its weights depend. docs/telemetry.md has the fields.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <halftone/lab/workloads/choices.h>
#include <halftone/policy/file/json_value.h>

namespace halftone::lab {

/// The fields of summary.json that say which run it is, in their order.
std::span<const std::string_view> identity_fields();

/// The commit that this library was built from, with "-dirty" where files had been changed since;
/// "" where git did not know.
extern const char* const built_from_commit;

/// Of all samples of a dataset as Dataset::batch() gives them, before random transforms; of more
/// than 65,536 so many, evenly spread. 16 hexadecimal digits.
std::string hash_of(const data::Dataset& dataset);
/// Of names and tensors.
std::string hash_of(const optim::NamedTensors& state);

/// Optimizer, schedule, clipping, batch and data, before the first step; `optimizer` has the
/// options that it begins with.
policy::Json identity_of_training(const Workload& workload, const Choices& choices,
                                  const optim::Optimizer& optimizer, const data::DataLoader& train,
                                  const data::DataLoader* validation, int64_t steps);
/// Version, commit, compiler, backend, kernels, threads and processor of this program, here.
policy::Json identity_of_place();

/// Where two identities differ, each as "threads: 2 there, 1 here".
std::vector<std::string> differences(const policy::Json& there, const policy::Json& here);

}  // namespace halftone::lab
