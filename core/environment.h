// Environment variables: an empty variable counts as not set, as in a shell's ${NAME:-default}.
#pragma once

#include <cstdlib>

namespace halftone {

/// Returns the value, or null if the variable is not set or empty.
inline const char* environment_variable(const char* name) {
  const char* const value = std::getenv(name);
  return value && *value ? value : nullptr;
}

}  // namespace halftone
