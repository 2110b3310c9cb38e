// What operations keep for their backward, read off their members: an operation is a plain struct,
// so that its tensors can be listed without its help. Nothing of this runs during a step, and no
// node knows of it: who looks at a graph (autograd/write_dot.h) asks from outside.
#pragma once

#include <array>
#include <type_traits>
#include <utility>
#include <vector>

#include <halftone/autograd/apply.h>

namespace halftone {

namespace detail {

/// Stands for a value of any type where a struct is initialised: so its members can be counted.
struct AnyValue {
  template <class T> operator T() const;
};
template <class S, std::size_t... I> consteval bool takes_values(std::index_sequence<I...>) {
  return requires { S{(static_cast<void>(I), AnyValue{})...}; };
}
inline constexpr std::size_t most_members = 12;  // those of layer_norm and batch_norm are 10
template <class S, std::size_t N = most_members + 1> consteval std::size_t count_of_values() {
  if constexpr (N == 0 || takes_values<S>(std::make_index_sequence<N>{})) return N;
  else return count_of_values<S, N - 1>();
}

/// see(member) for each member of a struct without constructors and private members.
template <class S, class See> void for_each_member(const S& s, const See& see) {
  const auto all = [&](const auto&... member) { (see(member), ...); };
  constexpr std::size_t bases = std::derived_from<S, UserOp> ? 1 : 0;  // initialised first
  constexpr std::size_t count = count_of_values<S>() - bases;
  static_assert(count <= most_members, "give members that belong together a struct of their own");
  if constexpr (count == 1) {
    const auto& [a] = s;
    all(a);
  } else if constexpr (count == 2) {
    const auto& [a, b] = s;
    all(a, b);
  } else if constexpr (count == 3) {
    const auto& [a, b, c] = s;
    all(a, b, c);
  } else if constexpr (count == 4) {
    const auto& [a, b, c, d] = s;
    all(a, b, c, d);
  } else if constexpr (count == 5) {
    const auto& [a, b, c, d, e] = s;
    all(a, b, c, d, e);
  } else if constexpr (count == 6) {
    const auto& [a, b, c, d, e, f] = s;
    all(a, b, c, d, e, f);
  } else if constexpr (count == 7) {
    const auto& [a, b, c, d, e, f, g] = s;
    all(a, b, c, d, e, f, g);
  } else if constexpr (count == 8) {
    const auto& [a, b, c, d, e, f, g, h] = s;
    all(a, b, c, d, e, f, g, h);
  } else if constexpr (count == 9) {
    const auto& [a, b, c, d, e, f, g, h, i] = s;
    all(a, b, c, d, e, f, g, h, i);
  } else if constexpr (count == 10) {
    const auto& [a, b, c, d, e, f, g, h, i, j] = s;
    all(a, b, c, d, e, f, g, h, i, j);
  } else if constexpr (count == 11) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k] = s;
    all(a, b, c, d, e, f, g, h, i, j, k);
  } else if constexpr (count == 12) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k, l] = s;
    all(a, b, c, d, e, f, g, h, i, j, k, l);
  }
}

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
