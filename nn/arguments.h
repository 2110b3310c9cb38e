// Checks of constructor arguments, shared by the layers: a wrong size is reported by the
// constructor, not at the first forward pass.
#pragma once

#include <cstdint>
#include <string_view>

#include <halftone/core/error.h>

namespace halftone::nn::detail {

/// For constructors that only explain the right call in a static_assert.
template <class T> inline constexpr bool positional = false;

inline void require_positive(std::string_view layer, std::string_view name, int64_t value) {
  if (value < 1) fail<UsageError>(layer, name, " is ", value, ". Use 1 or more.");
}

inline void require_divisible(std::string_view layer, std::string_view name, int64_t value,
                              int64_t groups) {
  if (value % groups != 0)
    fail<ShapeError>(layer, name, " ", value, " does not divide into ", groups,
                     " groups. Choose a divisor of ", value, ".");
}

}  // namespace halftone::nn::detail
