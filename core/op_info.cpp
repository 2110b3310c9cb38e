// Names of the cast classes, for tables and messages.
#include <halftone/core/op_info.h>

namespace halftone {

std::string_view name(CastClass cast_class) {
  switch (cast_class) {
    case CastClass::low_precision: return "low_precision";
    case CastClass::full_precision: return "full_precision";
    case CastClass::widest_input: return "widest_input";
    case CastClass::as_is: return "as_is";
    case CastClass::banned: return "banned";
  }
  return "";
}

}  // namespace halftone
