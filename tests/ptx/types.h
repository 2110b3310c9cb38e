// The types that PTX instructions end with, as C++ types.
#pragma once

#include <cstdint>
#include <cstring>

namespace halftone::ptx {

struct U8 {
  using T = uint8_t;
  static constexpr const char* name = "u8";
};
struct S8 {
  using T = int8_t;
  static constexpr const char* name = "s8";
};
struct U16 {
  using T = uint16_t;
  static constexpr const char* name = "u16";
};
struct S16 {
  using T = int16_t;
  static constexpr const char* name = "s16";
};
struct B16 {
  using T = uint16_t;
  static constexpr const char* name = "b16";
};
struct U32 {
  using T = uint32_t;
  static constexpr const char* name = "u32";
};
struct S32 {
  using T = int32_t;
  static constexpr const char* name = "s32";
};
struct B32 {
  using T = uint32_t;
  static constexpr const char* name = "b32";
};
struct U64 {
  using T = uint64_t;
  static constexpr const char* name = "u64";
};
struct S64 {
  using T = int64_t;
  static constexpr const char* name = "s64";
};
struct B64 {
  using T = uint64_t;
  static constexpr const char* name = "b64";
};
struct F32 {
  using T = float;
  static constexpr const char* name = "f32";
};
struct F64 {
  using T = double;
  static constexpr const char* name = "f64";
};
/// One byte for each thread, 0 or 1.
struct Pred {
  using T = uint8_t;
  static constexpr const char* name = "pred";
};

template <class To, class From> To bits_as(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &value, sizeof to);
  return to;
}

}  // namespace halftone::ptx
