// The table of dtype facts, and promotion.
#include <halftone/core/dtype.h>

#include <array>
#include <cmath>
#include <ostream>

namespace halftone {

namespace {
constexpr std::array<DTypeFacts, dtype_count> table{{
    {"f64", 8, true, 53, 1.7976931348623157e308, 4.9406564584124654e-324},
    {"f32", 4, true, 24, 3.4028234663852886e38, 1.4012984643248171e-45},
    {"f16", 2, true, 11, 65504, 5.9604644775390625e-8},
    {"bf16", 2, true, 8, 3.3895313892515355e38, 9.183549615799121e-41},
    {"f8_e4m3", 1, true, 4, 448, 0.001953125},
    {"f8_e5m2", 1, true, 3, 57344, 1.52587890625e-5},
    {"i64", 8, false, 0, 9223372036854775807.0, 0},
    {"i32", 4, false, 0, 2147483647.0, 0},
    {"i16", 2, false, 0, 32767, 0},
    {"u8", 1, false, 0, 255, 0},
    {"bool", 1, false, 0, 1, 0},
}};
}  // namespace

const DTypeFacts& facts(DType dtype) { return table[std::size_t(dtype)]; }

double epsilon(DType dtype) {
  const DTypeFacts& f = facts(dtype);
  return f.floating ? std::ldexp(1.0, 1 - f.significand_bits) : 0.0;
}

std::optional<DType> dtype_named(std::string_view name) {
  for (int i = 0; i < dtype_count; ++i)
    if (table[std::size_t(i)].name == name) return DType(i);
  return std::nullopt;
}

DType promote(DType a, DType b) {
  if (a == b) return a;
  if (is_floating(a) != is_floating(b)) return is_floating(a) ? a : b;
  if (is_floating(a)) {
    // Neither f16 nor bf16 (nor two different f8) can hold the other's numbers: the result is the
    // next format that holds both.
    const bool one_holds_the_other = size_of(a) != size_of(b);
    if (one_holds_the_other) return size_of(a) > size_of(b) ? a : b;
    return size_of(a) == 1 ? f16 : f32;
  }
  return size_of(a) == size_of(b) ? (a == boolean ? b : a) : (size_of(a) > size_of(b) ? a : b);
}

std::ostream& operator<<(std::ostream& out, DType dtype) { return out << name(dtype); }

}  // namespace halftone
