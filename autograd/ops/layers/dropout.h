// dropout: zeroes elements at random and scales the rest (Srivastava et al. 2014). The mask is not
// stored: the counter-based generator makes it again in backward from the same key.
#pragma once

#include <halftone/autograd/ops/elementwise.h>

namespace halftone {

struct Dropout {
  static constexpr OpInfo info{"dropout", CastClass::as_is, cast_reason::rounds_once};
  double p;
  RandomKey key;
  Strides order{};  // the mask runs in x's memory order

  Tensor masked(const Tensor& x) const {
    Tensor y = empty_like(x);
    backend_for(x).dropout(x, p, key, y);
    return y;
  }
  Tensor forward(const Tensor& x) {
    check::floating("dropout", x);
    order = strides_in_order_of(x.shape(), x.strides());
    return masked(views::with_strides(x, order));
  }
  std::array<Tensor, 1> backward(const Tensor& dy) const {
    return {masked(views::with_strides(dy, order))};
  }
};

/// As torch.nn.functional.dropout; draws from the default generator.
inline Tensor dropout(const Tensor& x, double p, bool training = true) {
  check::defined("dropout", "the input", x);
  if (!(p >= 0 && p <= 1)) fail<UsageError>("dropout", "p is ", p, ". It must be on [0, 1].");
  if (!training || p == 0) return x;
  return apply(Dropout{.p = p, .key = default_generator().reserve(uint64_t(x.numel()))}, x);
}

}  // namespace halftone
