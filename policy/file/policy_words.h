// The words of policy files for the values of enums, in their order.
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include <halftone/core/formats/number_format.h>
#include <halftone/core/op_info.h>
#include <halftone/core/update_rules.h>

namespace halftone::policy {

inline std::vector<std::string_view> cast_class_names() {
  std::vector<std::string_view> names;
  for (int i = 0; i <= int(CastClass::banned); ++i) names.push_back(name(CastClass(i)));
  return names;
}
inline std::vector<std::string_view> form_names() {
  std::vector<std::string_view> names;
  for (std::size_t i = 0; i < WeightForms::size; ++i) names.push_back(name(WeightForm(i)));
  return names;
}
inline std::vector<std::string_view> rounding_names() {
  std::vector<std::string_view> names;
  for (int i = 0; i < rounding_count; ++i) names.push_back(name(Rounding(i)));
  return names;
}

}  // namespace halftone::policy
