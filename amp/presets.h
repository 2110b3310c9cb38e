// Published casting lists, as data: what each system casts where its authors say so.
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
  /// The class of an operation that no list names, given the one it asks for itself.
  CastClass (*otherwise)(CastClass asked);
  std::vector<List> lists;
};
std::span<const Preset> presets();

}  // namespace halftone::amp
