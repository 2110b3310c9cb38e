// Why an operation asks for the class that it has, in a few words: what a table of classes leaves
// open.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include <halftone/core/op_info.h>

namespace halftone::amp {

/// Operations that ask for one class for one reason.
struct Reason {
  CastClass cast_class;
  std::string_view why;
  std::vector<std::string_view> operations;
};
/// Every operation that a policy speaks of is in one of them, under the class that it asks for.
std::span<const Reason> reasons();
/// "" for operations of users.
std::string_view reason_of(std::string_view operation);

}  // namespace halftone::amp
