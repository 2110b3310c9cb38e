// The change of dtype and the rounding to a grid, as operations of their own; and the checks of
// every operation's inputs.
#pragma once

#include <halftone/autograd/apply.h>
#include <halftone/core/backend.h>
#include <halftone/core/factory.h>
#include <halftone/core/formats/quantizer.h>
#include <halftone/core/pending.h>
#include <halftone/core/tensor.h>

namespace halftone::check {

// Checks of operations' inputs. All but the last two throw UsageError for an undefined tensor.

inline void defined(std::string_view op, std::string_view what, const Tensor& x) {
  if (!x.defined()) fail<UsageError>(op, what, " is undefined. Pass a tensor.");
}

inline void floating(std::string_view op, const Tensor& x) {
  defined(op, "an input", x);
  if (!is_floating(x.dtype()) || size_of(x.dtype()) == 1)
    fail<DTypeError>(op, "needs f64, f32, f16 or bf16, got ", described(x), ". Cast it first.");
}

inline void same_dtype(std::string_view op, const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype())
    fail<DTypeError>(op, "dtypes differ: ", described(a), " and ", described(b),
                     ". Cast one of them, or run under autocast.");
}

inline void rank(std::string_view op, std::string_view what, const Tensor& x, int wanted) {
  defined(op, what, x);
  if (x.rank() != wanted)
    fail<ShapeError>(op, what, " is ", described(x), ", of rank ", x.rank(), ". It must have rank ",
                     wanted, ".");
}

/// Throws DTypeError unless x's dtype is an integer type, f64, f32, f16 or bf16.
inline void numbers(std::string_view op, const Tensor& x) {
  defined(op, "an input", x);
  if (x.dtype() == boolean || (is_floating(x.dtype()) && size_of(x.dtype()) == 1))
    fail<DTypeError>(op, "needs integers, f64, f32, f16 or bf16, got ", described(x),
                     ". Cast it first.");
}
/// Throws DTypeError unless x's dtype is bool or one that numbers() allows.
inline void numbers_or_bool(std::string_view op, const Tensor& x) {
  defined(op, "an input", x);
  if (x.dtype() != boolean) numbers(op, x);
}

/// Throws DTypeError unless x (indices or targets) is i64 or i32. Kernels take i64: wide_indices().
inline void integers(std::string_view op, std::string_view what, const Tensor& x) {
  defined(op, what, x);
  if (x.dtype() != i64 && x.dtype() != i32)
    fail<DTypeError>(op, what, " must be i64 or i32, got ", described(x), ". Cast it first.");
}

/// Throws DeviceError unless x is on the input's device or undefined: for tensors that do not pass
/// through apply(), which checks devices.
inline void on_device_of(std::string_view op, const Tensor& input, std::string_view what,
                         const Tensor& x) {
  if (x.defined() && x.device() != input.device())
    fail<DeviceError>(op, "the input is on ", input.device(), ", ", what, " on ", x.device(),
                      ". Move them to one device with to().");
}

/// Throws DTypeError or ShapeError unless x (a weight) is undefined or floating of shape [size].
inline void vector_of(std::string_view op, std::string_view what, const Tensor& x, int64_t size) {
  if (!x.defined()) return;
  floating(op, x);
  if (x.rank() != 1 || x.shape()[0] != size)
    fail<ShapeError>(op, what, " is ", described(x), " for ", size, " channels. It must be [", size,
                     "].");
}

}  // namespace halftone::check

// cast: the change of dtype, as an operation of its own. Mixed precision is made of recorded casts:
// the gradient of a cast is the cast back, so gradients arrive in the dtype of the tensor they
// belong to.

namespace halftone {

struct Cast {
  static constexpr OpInfo info{"cast", CastClass::as_is};
  /// Not freed: the cast of a weight may serve several losses, each with its own backward.
  static constexpr bool survives_backward = true, reads_waiting = true;
  DType to;
  bool channels_last = false;  // in memory; else in x's order
  bool later = false;          // the result may wait (core/pending.h)
  DType from{};

  Tensor forward(const Tensor& x) {
    from = x.dtype();
    if (later) return widened_later(x, to);
    if (!channels_last) return halftone::converted(x, to);
    Tensor y = empty_channels_last(x.shape(), to, x.device());
    backend_for(x).copy(x, y);
    return y;
  }
  std::array<Tensor, 1> backward(const Tensor& dy) const { return {widened_later(dy, from)}; }
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;
};

/// Returns x in another dtype. Floating dtypes round to nearest even, integers truncate. Returns x
/// itself if it already has that dtype. As torch.Tensor.to(dtype).
inline Tensor cast(const Tensor& x, DType dtype) {
  if (!x.defined()) fail<UsageError>("cast", "the input is undefined. Pass a tensor.");
  return x.dtype() == dtype ? x : apply(Cast{.to = dtype}, x);
}

// quantize: rounds values to the grid of a short format, with its scales, as a tensor core with
// that format would see them; the dtype stays. The gradient is that of the identity, even if a
// value saturated: the straight-through estimator (Bengio et al. 2013).

struct Quantize {
  static constexpr OpInfo info{"quantize", CastClass::as_is, "rounds by a grid of its own"};
  Quantizer quantizer;
  RandomKey key{};

  Tensor forward(const Tensor& x);
  std::array<Tensor, 1> backward(const Tensor& dy) const { return {dy}; }
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;
};

/// Returns x on the quantizer's grid. Blocks and rotations run along the last dimension, the
/// columns. f64 is computed in f32. Stochastic rounding draws from the default generator. Throws
/// ShapeError if the size of rotations does not divide the columns. Throws UsageError if the dtype
/// does not hold the results exactly, and for a quantizer that scales from a history or rounds by
/// an average over steps: a single call has neither.
///   Tensor y = quantize(x, *quantizer_named("mxfp4"));
Tensor quantize(const Tensor& x, const Quantizer& quantizer);
/// Returns x on the grid of a quantizer by its name, as quantizer_named(): quantize(x, "e4m3").
/// Throws UsageError for an unknown name.
Tensor quantize(const Tensor& x, std::string_view quantizer);

}  // namespace halftone
