// Environment variables: set to nothing is the same as not set, as in a shell's ${NAME:-default}.
#pragma once

#include <cstdlib>

namespace halftone {

/// The value, null if there is none or it is empty.
inline const char* environment_variable(const char* name) {
  const char* const value = std::getenv(name);
  return value && *value ? value : nullptr;
}

}  // namespace halftone
