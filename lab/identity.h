// The identity of a run: everything that its weights depend on. docs/telemetry.md has the fields.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <halftone/lab/workloads/choices.h>
#include <halftone/policy/json_value.h>

namespace halftone::lab {

/// The version of the library: "1.0.0".
std::string version();

/// Returns the fields of summary.json that identify the run, in their order.
std::span<const std::string_view> identity_fields();

/// The commit that this library was built from, with "-dirty" if files had changed since; "" if git
/// did not know it.
extern const char* const built_from_commit;

/// Hashes the samples of a dataset as Dataset::batch() gives them, before random transforms. Takes
/// all samples, or 65,536 evenly spread ones if there are more. Returns 16 hexadecimal digits.
std::string hash_of(const data::Dataset& dataset);
/// Hashes names and tensors.
std::string hash_of(const optim::NamedTensors& state);

/// Returns optimizer, schedule, clipping, batch and data, as before the first step; `optimizer`
/// must have its initial options.
policy::Json identity_of_training(const Workload& workload, const Choices& choices,
                                  const optim::Optimizer& optimizer, const data::DataLoader& train,
                                  const data::DataLoader* validation, int64_t steps);
/// Returns version, commit, compiler, backend, kernels, threads and processor of this process.
policy::Json identity_of_place();

/// Lists the fields in which two identities differ, each as "threads: 2 there, 1 here".
std::vector<std::string> differences(const policy::Json& there, const policy::Json& here);

}  // namespace halftone::lab
