// Collective calls of all ranks, made of exchanges. Nothing is added here; callers add what they
// receive in the order of the ranks. All ranks make the same calls in the same order. `what` names
// the call in messages about ranks that do not arrive.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <halftone/core/communicator.h>
#include <halftone/core/named_tensors.h>

namespace halftone::distributed {

/// Returns each rank's tensor, by rank. They are dense, on the host, and equal in shape and dtype;
/// the entry of this rank is the caller's tensor.
std::vector<Tensor> all_gather(Communicator& group, std::string_view what, TrafficUse use,
                               const Tensor& own);
/// The same for tensors of different sizes, which all ranks know: the caller passes them by rank,
/// and those of the other ranks are written.
std::vector<Tensor> all_gather(Communicator& group, std::string_view what, TrafficUse use,
                               std::vector<Tensor> all);
/// Returns each rank's text, by rank.
std::vector<std::string> all_gather_texts(Communicator& group, std::string_view what,
                                          std::string_view own);
/// Returns the largest number of all ranks.
int64_t largest(Communicator& group, std::string_view what, int64_t own);

/// Returns rank 0's text.
std::string broadcast_text(Communicator& group, std::string_view what, std::string_view text);
int64_t broadcast_number(Communicator& group, std::string_view what, int64_t own);
/// Returns rank 0's tensor, whose dtype and shape all ranks know: on the host, row-major; on rank 0
/// the caller's own.
Tensor broadcast_tensor(Communicator& group, std::string_view what, const Tensor& own,
                        const TensorInfo& info);
/// Returns name, dtype and shape of rank 0's tensors.
std::vector<TensorInfo> broadcast_infos(Communicator& group, std::string_view what,
                                        const NamedTensors& tensors);
/// Returns rank 0's tensors, each as by broadcast_tensor(). The other ranks' argument is ignored.
NamedTensors broadcast(Communicator& group, std::string_view what, const NamedTensors& tensors);

/// Runs a function on rank 0 only. If it throws, all ranks throw the same kind of Error with the
/// same message.
void on_rank_0(Communicator& group, std::string_view what, const std::function<void()>& body);

/// Throws UsageError on every rank if a rank's text differs from rank 0's. The error names both
/// values of the first different line, which has the form "name value".
void require_agreement(Communicator& group, std::string_view what, std::string_view text);

}  // namespace halftone::distributed
