// The scale of a block that depends on its elements or on random numbers, for the reference's
// kernels and surveys.
#pragma once

#include <halftone/backends/reference/loops.h>
#include <halftone/core/formats/block_scale.h>

namespace halftone::reference {

inline const float* floats_of(const Tensor& x) { return x.defined() ? x.data<float>() : nullptr; }

/// Returns the scale of the block of `height` rows of `width` elements of x from `first` on. x:
/// row-major; amax: the block's largest magnitude.
inline Scale scale_by_elements(const QuantizeNumbers& n, const QuantizeCall& call, const Tensor& x,
                               int64_t first, int64_t height, int64_t width, float amax) {
  Workspace<float> values(height * width);
  for (int64_t i = 0; i < height; ++i)
    load(x, first + i * x.size(-1), width, values.data() + i * width);
  const TensorLevel level = level_of(n, amax_above(n, floats_of(call.amax), first / x.size(-1)));
  return block_scale(n, amax, level, scale_word(call.key, uint64_t(first)),
                     [&](ScaleError error, const auto& term) {
                       return block_total(error, height, width, [&](int64_t i, int64_t j) {
                         return term(values[i * width + j]);
                       });
                     });
}

}  // namespace halftone::reference
