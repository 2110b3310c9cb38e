// Conversions of f16 for the emulated build. They are the framework's own, which round as the
// hardware does and make the one NaN of the hardware.
#pragma once

#include <bit>

#include <halftone/core/dtype.h>

struct __half {
  unsigned short bits;
};
inline __half __float2half_rn(float value) {
  return {value != value ? static_cast<unsigned short>(0x7fff) : halftone::Float16(value).bits};
}
inline float __half2float(__half value) { return float(halftone::Float16::from_bits(value.bits)); }
inline unsigned short __half_as_ushort(__half value) { return value.bits; }
inline __half __ushort_as_half(unsigned short bits) { return {bits}; }
