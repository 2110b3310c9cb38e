// Conversions of bf16 for the emulated build. They are the framework's own, which round as the
// hardware does and make the one NaN of the hardware.
#pragma once

#include <halftone/core/dtype.h>

struct __nv_bfloat16 {
  unsigned short bits;
};
inline __nv_bfloat16 __float2bfloat16_rn(float value) {
  return {value != value ? static_cast<unsigned short>(0x7fff) : halftone::BFloat16(value).bits};
}
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 value) { return value.bits; }
