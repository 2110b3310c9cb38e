// cast: the change of dtype, as an operation of its own. Mixed precision is made of recorded casts:
// the gradient of a cast is the cast back, so gradients arrive in the dtype of the tensor they
// belong to.
#pragma once

#include <halftone/autograd/apply.h>
#include <halftone/core/backend.h>
#include <halftone/core/factory.h>

namespace halftone {

struct Cast {
  static constexpr OpInfo info{"cast", CastClass::as_is};
  /// Nothing to free: the cast of a weight may serve several losses, each with its own backward.
  static constexpr bool survives_backward = true;
  DType to;
  bool channels_last = false;  // in memory; else in x's order
  DType from{};

  Tensor forward(const Tensor& x) {
    from = x.dtype();
    if (!channels_last) return converted(x, to);
    Tensor y = empty_channels_last(x.shape(), to, x.device());
    backend_for(x).copy(x, y);
    return y;
  }
  std::array<Tensor, 1> backward(const Tensor& dy) const { return {converted(dy, from)}; }

  static Tensor converted(const Tensor& x, DType dtype) {
    Tensor y = empty_like(x, dtype);
    backend_for(x).copy(x, y);
    return y;
  }
};

/// Returns x in another dtype: rounds to nearest even; to integers truncates. Returns x itself if
/// it already has that dtype. As torch.Tensor.to(dtype).
inline Tensor cast(const Tensor& x, DType dtype) {
  if (!x.defined()) fail<UsageError>("cast", "the input is undefined. Pass a tensor.");
  return x.dtype() == dtype ? x : apply(Cast{.to = dtype}, x);
}

}  // namespace halftone
