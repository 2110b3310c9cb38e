// Lists the members of an operation, a plain struct: its saved tensors can be read from outside.
#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include <halftone/autograd/op_list.h>
#include <halftone/core/tensor.h>

namespace halftone::detail {

/// Converts to a value of any type where a struct is initialized: so its members can be counted.
struct AnyValue {
  template <class T> operator T() const;
};
template <class S, std::size_t... I> consteval bool takes_values(std::index_sequence<I...>) {
  return requires { S{(static_cast<void>(I), AnyValue{})...}; };
}
inline constexpr std::size_t most_members = 12;  // layer_norm and batch_norm have the most, 10
template <class S, std::size_t N = most_members + 1> consteval std::size_t count_of_values() {
  if constexpr (N == 0 || takes_values<S>(std::make_index_sequence<N>{})) return N;
  else return count_of_values<S, N - 1>();
}

/// Calls see(member) for each member of a struct without constructors and private members.
template <class S, class See> void for_each_member(const S& s, const See& see) {
  const auto all = [&](const auto&... member) { (see(member), ...); };
  constexpr std::size_t bases = std::derived_from<S, UserOp> ? 1 : 0;  // initialized first
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

/// Returns the sum of the storage versions (core/memory.h) of the tensors in a member: it grows
/// with each write in place. A struct that other passes may write declares `static constexpr bool
/// written_by_passes = true` and is skipped, as are structs that cannot be read.
template <class M> uint64_t versions_of(const M& member) {
  if constexpr (requires { M::written_by_passes; }) {
    return 0;
  } else if constexpr (std::same_as<M, Tensor>) {
    return member.defined() ? member.storage()->version() : 0;
  } else if constexpr (std::same_as<M, std::vector<Tensor>>) {
    uint64_t sum = 0;
    for (const Tensor& x : member) sum += versions_of(x);
    return sum;
  } else if constexpr (requires { member.has_value(), *member; }) {
    return member ? versions_of(*member) : 0;
  } else if constexpr (std::is_class_v<M> && std::is_aggregate_v<M>) {
    uint64_t sum = 0;
    if constexpr (count_of_values<M>() <= most_members)
      for_each_member(member, [&](const auto& inner) { sum += versions_of(inner); });
    return sum;
  } else {
    return 0;
  }
}

}  // namespace halftone::detail
