// The element types and the facts about them. Facts are data: test tolerances, policies and tables
// are computed from them, never typed by hand. Short floats are storage only; kernels compute in
// compute_t<T>.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <limits>
#include <optional>
#include <string_view>
#include <type_traits>

#include <halftone/core/error.h>
#include <halftone/core/short_floats.h>

namespace halftone {

enum class DType : uint8_t { f64, f32, f16, bf16, f8_e4m3, f8_e5m2, i64, i32, i16, u8, boolean };
inline constexpr int dtype_count = 11;

inline constexpr DType f64 = DType::f64, f32 = DType::f32, f16 = DType::f16, bf16 = DType::bf16,
                       f8_e4m3 = DType::f8_e4m3, f8_e5m2 = DType::f8_e5m2, i64 = DType::i64,
                       i32 = DType::i32, i16 = DType::i16, u8 = DType::u8, boolean = DType::boolean;

struct DTypeFacts {
  std::string_view name;
  int bytes;
  bool floating;
  int significand_bits;       // with the hidden bit; 0 for integers
  double max;                 // largest finite value
  double smallest_subnormal;  // 0 for integers
};
const DTypeFacts& facts(DType dtype);

inline std::string_view name(DType dtype) { return facts(dtype).name; }
inline int64_t size_of(DType dtype) { return facts(dtype).bytes; }
inline bool is_floating(DType dtype) { return facts(dtype).floating; }
/// Returns the spacing of the format at 1: 2^(1 - significand_bits). The largest relative error of
/// one rounding is half of it.
double epsilon(DType dtype);
/// Returns the dtype of that name ("bf16"), if it exists.
std::optional<DType> dtype_named(std::string_view name);
/// Returns the dtype that holds both, as PyTorch promotes: a float wins over an integer, and f16
/// with bf16 gives f32.
DType promote(DType a, DType b);
std::ostream& operator<<(std::ostream& out, DType dtype);

namespace detail {
template <class T> struct DTypeOf;
template <> struct DTypeOf<double> { static constexpr DType value = f64; };
template <> struct DTypeOf<float> { static constexpr DType value = f32; };
template <> struct DTypeOf<Float16> { static constexpr DType value = f16; };
template <> struct DTypeOf<BFloat16> { static constexpr DType value = bf16; };
template <> struct DTypeOf<Float8E4M3> { static constexpr DType value = f8_e4m3; };
template <> struct DTypeOf<Float8E5M2> { static constexpr DType value = f8_e5m2; };
template <> struct DTypeOf<int64_t> { static constexpr DType value = i64; };
template <> struct DTypeOf<int32_t> { static constexpr DType value = i32; };
template <> struct DTypeOf<int16_t> { static constexpr DType value = i16; };
template <> struct DTypeOf<uint8_t> { static constexpr DType value = u8; };
template <> struct DTypeOf<bool> { static constexpr DType value = boolean; };
template <class T> struct ComputeOf { using type = T; };
template <> struct ComputeOf<Float16> { using type = float; };
template <> struct ComputeOf<BFloat16> { using type = float; };
template <> struct ComputeOf<Float8E4M3> { using type = float; };
template <> struct ComputeOf<Float8E5M2> { using type = float; };
}  // namespace detail

template <class T> inline constexpr DType dtype_of = detail::DTypeOf<T>::value;
/// The type that kernels compute and accumulate in: float for the short floats, T itself otherwise.
template <class T> using compute_t = typename detail::ComputeOf<T>::type;

/// Calls visitor.operator()<T>() with the C++ type of a floating dtype; `op` names the caller in
/// the error.
template <class Visitor>
decltype(auto) visit_floating(DType dtype, std::string_view op, Visitor&& visitor) {
  switch (dtype) {
    case f64: return visitor.template operator()<double>();
    case f32: return visitor.template operator()<float>();
    case f16: return visitor.template operator()<Float16>();
    case bf16: return visitor.template operator()<BFloat16>();
    case f8_e4m3:
    case f8_e5m2:
    case i64:
    case i32:
    case i16:
    case u8:
    case boolean: break;
  }
  fail<DTypeError>(op, "needs f64, f32, f16 or bf16, got ", dtype, ". Cast the input first.");
}

/// Calls visitor.operator()<T>() with the C++ type of any dtype.
template <class Visitor> constexpr decltype(auto) visit_any(DType dtype, Visitor&& visitor) {
  switch (dtype) {
    case f64: return visitor.template operator()<double>();
    case f32: return visitor.template operator()<float>();
    case f16: return visitor.template operator()<Float16>();
    case bf16: return visitor.template operator()<BFloat16>();
    case f8_e4m3: return visitor.template operator()<Float8E4M3>();
    case f8_e5m2: return visitor.template operator()<Float8E5M2>();
    case i64: return visitor.template operator()<int64_t>();
    case i32: return visitor.template operator()<int32_t>();
    case i16: return visitor.template operator()<int16_t>();
    case u8: return visitor.template operator()<uint8_t>();
    case boolean: return visitor.template operator()<bool>();
  }
  return visitor.template operator()<bool>();  // not reached: every dtype has its case
}

/// Returns a double as a float rounded to odd. Rounding the result to a shorter format then gives
/// the same bits as rounding the double directly (Boldo and Melquiond 2008), because the last bit
/// records whether something was cut off.
constexpr float round_to_odd(double value) {
  const float nearest = float(value);
  if (double(nearest) == value || nearest != nearest) return nearest;
  uint32_t bits = std::bit_cast<uint32_t>(nearest);
  const double magnitude = value < 0 ? -value : value,
               rounded = value < 0 ? -double(nearest) : double(nearest);
  if (rounded > magnitude)
    bits -= 1;  // towards zero: also brings an overflow back to the largest float
  return std::bit_cast<float>(bits | 1u);
}

/// Converts one element as cast() does: floats round once, floats to integers truncate (NaN gives
/// 0, values out of range clamp: C++ leaves both undefined), and every nonzero value is true.
template <class To, class From> constexpr To convert(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (!std::is_arithmetic_v<From>) {
    return convert<To>(float(value));
  } else if constexpr (std::is_same_v<To, bool>) {
    return value != From(0);
  } else if constexpr (!std::is_arithmetic_v<To>) {
    // One rounding only: a double becomes a short format through a float with a sticky bit.
    if constexpr (std::is_same_v<From, float> || sizeof(From) < 4) return To(float(value));
    else return To(round_to_odd(double(value)));
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    if (value != value) return To(0);
    constexpr double low = double(std::numeric_limits<To>::min()),
                     high = double(std::numeric_limits<To>::max());
    if (double(value) <= low) return std::numeric_limits<To>::min();
    if (double(value) >= high) return std::numeric_limits<To>::max();
    return To(value);
  } else {
    return To(value);
  }
}

}  // namespace halftone
