// The table of all conversions.
#include <halftone/onnx/conversions.h>

#include <unordered_map>

namespace halftone::onnx {

const Conversion* conversion_of(const OpInfo& op) {
  static const auto table = [] {
    std::unordered_map<const OpInfo*, Conversion> all;
    for (const auto& list : {formula_conversions(), shape_conversions(), reduction_conversions(),
                             product_conversions(), image_conversions(), recurrent_conversions(),
                             quantizer_conversions()})
      for (const Conversion& each : list) all.emplace(each.info, each);
    return all;
  }();
  const auto found = table.find(&op);
  return found == table.end() ? nullptr : &found->second;
}

}  // namespace halftone::onnx
