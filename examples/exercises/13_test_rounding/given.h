// The type of task 13: implementations of task 1.
#pragma once

#include <cstdint>

/// A function that rounds an f32 to the 16 bits of a bf16.
using Rounding = uint16_t (*)(float);
