// The words for a precision: PyTorch Lightning's, and the names of strategies.
//
//   64-true    fp64       everything in f64
//   32-true    fp32       everything in f32
//   16-mixed   amp-fp16   f32 weights, autocast to f16, dynamic loss scale
//   bf16-mixed amp-bf16   f32 weights, autocast to bf16
//   16-true    o3-fp16    f16 weights (optimizer state stays f32: f16 would underflow)
//   bf16-true  full-bf16  bf16 weights and optimizer state
#pragma once

#include <string_view>

#include <halftone/amp/strategy.h>

namespace halftone::train {

/// Returns the strategy for a word of the table, or for a strategy's own name ("o2-bf16"). Throws
/// UsageError for other words, with the nearest known one.
amp::Strategy strategy_for(std::string_view precision);

}  // namespace halftone::train
