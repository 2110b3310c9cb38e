// All the metaprogramming of this library: lists of types, searched and visited at compile time.
// The catalog of operations and the tables of elementwise formulas are such lists.
#pragma once

#include <concepts>
#include <cstddef>

namespace halftone {

template <class... T> struct TypeList { static constexpr std::size_t size = sizeof...(T); };

namespace detail {
template <class... L> struct ConcatOf;
template <class... A> struct ConcatOf<TypeList<A...>> { using type = TypeList<A...>; };
template <class... A, class... B, class... R>
struct ConcatOf<TypeList<A...>, TypeList<B...>, R...> : ConcatOf<TypeList<A..., B...>, R...> {};
template <template <class> class W, class L> struct WrapOf;
template <template <class> class W, class... T> struct WrapOf<W, TypeList<T...>> {
  using type = TypeList<W<T>...>;
};
}  // namespace detail

/// TypeList<A..., B...> of several lists.
template <class... L> using Concat = typename detail::ConcatOf<L...>::type;
/// TypeList<W<T>...> of a list of T.
template <template <class> class W, class L> using Wrap = typename detail::WrapOf<W, L>::type;

template <class T, class L> inline constexpr bool is_in_list = false;
template <class T, class... Ts>
inline constexpr bool is_in_list<T, TypeList<Ts...>> = (std::same_as<T, Ts> || ...);

/// Position of T in the list, -1 if it is not in the list.
template <class T, class L> inline constexpr int index_of = -1;
template <class T, class... Ts>
inline constexpr int index_of<T, TypeList<Ts...>> = [] {
  int position = 0, found = -1;
  ((std::same_as<T, Ts> ? found = position++ : position++), ...);
  return found;
}();

/// Calls visitor.operator()<T>() for the T at `index`; returns whether that index exists.
template <class Visitor, class... T>
constexpr bool visit_index(TypeList<T...>, int index, Visitor&& visitor) {
  int position = 0;
  return ((position++ == index ? (visitor.template operator()<T>(), true) : false) || ...);
}

/// Calls visitor.operator()<T>() for every T, in order.
template <class Visitor, class... T>
constexpr void for_each_type(TypeList<T...>, Visitor&& visitor) {
  (visitor.template operator()<T>(), ...);
}

}  // namespace halftone
