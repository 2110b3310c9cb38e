// The files of policies/, built into the library.
#pragma once

#include <span>
#include <string_view>

namespace halftone::policy {

struct ShippedPolicy {
  std::string_view name;  // "mxfp8", of policies/mxfp8.json
  std::string_view text;  // the file's content
};

/// Returns all of them, by name.
std::span<const ShippedPolicy> shipped_policies();

/// Returns the one with this name or file name ("mxfp8", "mxfp8.json"); null if there is none.
inline const ShippedPolicy* shipped_policy(std::string_view name) {
  if (name.ends_with(".json")) name.remove_suffix(5);
  for (const ShippedPolicy& policy : shipped_policies())
    if (policy.name == name) return &policy;
  return nullptr;
}

}  // namespace halftone::policy
