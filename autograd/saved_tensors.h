// What operations keep for their backward, read off their members: an operation is a plain struct,
// so that its tensors can be listed without its help. Nothing of this runs during a step, and no
// node knows of it: who looks at a graph (autograd/write_dot.h) asks from outside.
#pragma once

#include <vector>

#include <halftone/autograd/apply.h>
#include <halftone/autograd/members.h>

namespace halftone {

namespace detail {

/// Tensors, lists of them, and structs that hold some; in the order of the members.
template <class M> void list_tensors(const M& member, std::vector<Tensor>& list) {
  if constexpr (std::same_as<M, Tensor>) {
    if (member.defined()) list.push_back(member);
  } else if constexpr (std::same_as<M, std::vector<Tensor>>) {
    for (const Tensor& x : member) list_tensors(x, list);
  } else if constexpr (requires { member.has_value(), *member; }) {
    if (member) list_tensors(*member, list);
  } else if constexpr (std::is_class_v<M> && std::is_aggregate_v<M>) {
    for_each_member(member, [&](const auto& inner) { list_tensors(inner, list); });
  }
}

}  // namespace detail

/// Reads nodes of one operation.
struct OperationReader {
  const OpInfo* info;
  /// False for a node of another operation. Otherwise lists what the node keeps: nothing once it is
  /// released.
  bool (*saved)(const Node& node, std::vector<Tensor>& list);
  /// Whether the gradient of an input may pass by the cast that made it (Needs, in
  /// autograd/apply.h).
  bool (*wide)(std::size_t input);
};

/// Of an operation of a user, which must be a struct without constructors and private members:
/// reader_of<SwishGate>().
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

/// Of every operation of the catalogue.
std::vector<OperationReader> catalogue_readers();

}  // namespace halftone
