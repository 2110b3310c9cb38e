// The name of an object's class as in its source.
#pragma once

#include <cstdlib>
#include <memory>
#include <string>
#include <typeinfo>

#include <cxxabi.h>

namespace halftone::train {

/// Returns the name without namespaces: "BatchNorm1d".
inline std::string class_name(const std::type_info& type) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(type.name(), nullptr, nullptr, &status), std::free);
  if (status != 0) return type.name();
  const std::string whole = name.get();
  const auto colon = whole.rfind(':', whole.find('<'));
  return colon == std::string::npos ? whole : whole.substr(colon + 1);
}

}  // namespace halftone::train
