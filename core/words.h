// The words of an enumeration: one table next to it, from which name(), named() and the choices
// that errors list follow.
//   template <> inline constexpr std::array words_of<Rounding>{"nearest_even"sv, ...};
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

namespace halftone {

/// A specialization has the words of an enumeration, in the order of its values.
template <class E> inline constexpr std::array<std::string_view, 0> words_of{};
template <class E>
concept HasWords = words_of<E>
.size() > 0;

template <HasWords E> constexpr std::string_view name(E value) {
  return words_of<E>[std::size_t(value)];
}
/// Returns the value with that name, if there is one.
template <HasWords E> constexpr std::optional<E> named(std::string_view name) {
  for (std::size_t i = 0; i < words_of<E>.size(); ++i)
    if (words_of<E>[i] == name) return E(i);
  return std::nullopt;
}

}  // namespace halftone
