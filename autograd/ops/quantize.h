// quantize: rounds values to the grid of a short format, with its scales, as a tensor core with
// that format would see them; the dtype stays. The gradient is that of the identity, even if a
// value saturated: the straight-through estimator (Bengio et al. 2013).
#pragma once

#include <halftone/autograd/apply.h>
#include <halftone/autograd/ops/checks.h>
#include <halftone/core/formats/quantizer.h>

namespace halftone {

struct Quantize {
  static constexpr OpInfo info{"quantize", CastClass::as_is, "rounds by a grid of its own"};
  Quantizer quantizer;
  RandomKey key{};

  Tensor forward(const Tensor& x);
  std::array<Tensor, 1> backward(const Tensor& dy) const { return {dy}; }
};

/// Returns x on the quantizer's grid. Blocks and rotations run along the last dimension, the
/// columns. f64 is computed in f32. Stochastic rounding draws from the default generator. Throws
/// UsageError if the dtype does not hold the results exactly, for scaling from a history, which
/// needs an owner of that history, and if rotations do not divide the columns.
///   Tensor y = quantize(x, *quantizer_named("mxfp4"));
Tensor quantize(const Tensor& x, const Quantizer& quantizer);
/// The same by name: a format's, or that of a ready-made quantizer. quantize(x, "e4m3").
Tensor quantize(const Tensor& x, std::string_view quantizer);

}  // namespace halftone
