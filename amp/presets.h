// Published casting lists, as data: the casts of each system, with the source of its list.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include <halftone/core/op_info.h>

namespace halftone::amp {

struct Preset {
  struct List {
    CastClass cast_class;
    std::vector<std::string_view> operations;
  };
  std::string_view name;
  /// Returns the class of an operation that no list names, from the class that it asks for.
  CastClass (*otherwise)(CastClass asked);
  std::vector<List> lists;
};
std::span<const Preset> presets();

}  // namespace halftone::amp
