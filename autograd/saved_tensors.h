// Lists the tensors that operations save for their backward, read from their members: an operation
// is a plain struct, so that its tensors can be listed without its help. None of this runs during a
// step, and no node knows of it: a reader of a graph (autograd/write_dot.h) asks from outside.
#pragma once

#include <vector>

#include <halftone/autograd/apply.h>
#include <halftone/autograd/members.h>

namespace halftone {

namespace detail {

/// Lists tensors, lists of them, and structs that hold some, in the order of the members.
template <class M> void list_tensors(const M& member, std::vector<Tensor>& list) {
  if constexpr (std::same_as<M, Tensor>) {
    if (member.defined()) list.push_back(member);
  } else if constexpr (std::same_as<M, std::vector<Tensor>>) {
    for (const Tensor& x : member) list_tensors(x, list);
  } else if constexpr (requires { member.has_value(), *member; }) {
    if (member) list_tensors(*member, list);
  } else if constexpr (std::is_class_v<M> && std::is_aggregate_v<M> &&
                       !std::is_trivially_copyable_v<M>) {  // such structs hold none
    for_each_member(member, [&](const auto& inner) { list_tensors(inner, list); });
  }
}

}  // namespace detail

/// Reads nodes of one operation.
struct OperationReader {
  const OpInfo* info;
  /// Returns false for a node of another operation. Otherwise lists the node's saved tensors: none
  /// after its release.
  bool (*saved)(const Node& node, std::vector<Tensor>& list);
  /// Returns whether the gradient of an input may bypass the cast that made it (Needs, in
  /// autograd/apply.h).
  bool (*wide)(std::size_t input);
};

/// Returns the reader of a user's operation, which must be a struct without constructors and
/// private members: reader_of<SwishGate>().
template <Operation Op> OperationReader reader_of() {
  static_assert(std::is_aggregate_v<Op>,
                "members of an operation that has constructors or private "
                "members cannot be listed");
  const auto saved = [](const Node& node, std::vector<Tensor>& list) {
    const auto* ours = dynamic_cast<const detail::NodeOf<Op>*>(&node);
    if (ours && ours->op) detail::list_tensors(*ours->op, list);
    return ours != nullptr;
  };
  return {&Op::info, saved, [](std::size_t input) { return detail::wants_wide<Op>(input); }};
}

/// Returns the readers of every operation of the catalog.
std::vector<OperationReader> catalogue_readers();

}  // namespace halftone
