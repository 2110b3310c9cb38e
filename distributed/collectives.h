// What all ranks do together, made of exchanges: nothing is added up here, and whoever adds up what
// comes does it in the order of the ranks. All ranks make the same calls in the same order. `what`
// names the call in messages about ranks that do not come.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <halftone/core/communicator.h>
#include <halftone/core/tensor_source.h>

namespace halftone::distributed {

/// Each rank's tensor, by rank. They are dense and alike in shape and dtype, on the host; the own
/// one is that of the caller.
std::vector<Tensor> all_gather(Communicator& group, std::string_view what, TrafficUse use,
                               const Tensor& own);
/// The same of tensors that differ in size, which all ranks know: the caller has them by rank, and
/// those of the others are written.
std::vector<Tensor> all_gather(Communicator& group, std::string_view what, TrafficUse use,
                               std::vector<Tensor> all);
/// Each rank's text, by rank.
std::vector<std::string> all_gather_texts(Communicator& group, std::string_view what,
                                          std::string_view own);
/// The largest that any rank has.
int64_t largest(Communicator& group, std::string_view what, int64_t own);

/// Rank 0's text.
std::string broadcast_text(Communicator& group, std::string_view what, std::string_view text);
int64_t broadcast_number(Communicator& group, std::string_view what, int64_t own);
/// Rank 0's tensor, which all know the dtype and shape of: on the host, row-major; on rank 0 the
/// caller's own.
Tensor broadcast_tensor(Communicator& group, std::string_view what, const Tensor& own,
                        const TensorInfo& info);
/// What rank 0's tensors are, by name.
std::vector<TensorInfo> broadcast_infos(Communicator& group, std::string_view what,
                                        const NamedTensors& tensors);
/// Rank 0's tensors, each as broadcast_tensor(). What others pass does not count.
NamedTensors broadcast(Communicator& group, std::string_view what, const NamedTensors& tensors);

/// Runs something on rank 0 alone. What it throws, all ranks throw: the same kind of Error with the
/// same message.
void on_rank_0(Communicator& group, std::string_view what, const std::function<void()>& body);

/// Throws UsageError on every rank, naming both values, if a rank's text is not rank 0's: the first
/// line that differs, which has the form "name value".
void require_agreement(Communicator& group, std::string_view what, std::string_view text);

}  // namespace halftone::distributed
