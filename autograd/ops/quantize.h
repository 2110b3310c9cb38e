// quantize: values onto the grid of a short format, scales included, as the tensor core of a chip
// that has it would see them; the dtype stays. The gradient passes as if nothing had happened, also
// where a value saturated: the straight-through estimator (Bengio et al. 2013).
#pragma once

#include <halftone/autograd/ops/checks.h>
#include <halftone/autograd/apply.h>
#include <halftone/core/quantized.h>

namespace halftone {

struct Quantize {
  static constexpr OpInfo info{"quantize", CastClass::as_is, "rounds by a grid of its own"};
  Quantizer quantizer;
  RandomKey key{};

  Tensor forward(const Tensor& x);
  std::array<Tensor, 1> backward(const Tensor& dy) const { return {dy}; }
};

/// x on the quantizer's grid. The last dimension is the columns along which blocks lie and
/// rotations run. f64 passes through f32. Stochastic rounding draws from the default generator.
/// Throws UsageError where the dtype does not hold the results exactly, for scaling from a history,
/// which needs somebody who keeps it, and where rotations do not divide the columns.
///   Tensor y = quantize(x, *quantizer_named("mxfp4"));
Tensor quantize(const Tensor& x, const Quantizer& quantizer);
/// By name: a format's, or that of a ready-made quantizer. quantize(x, "e4m3").
Tensor quantize(const Tensor& x, std::string_view quantizer);

}  // namespace halftone
