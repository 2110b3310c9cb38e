// Lists of gradients, which may lie on several devices: what scalers, clipping and norms share.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include <halftone/core/backend.h>

namespace halftone::optim {

/// use(those of one device, its backend) for stretches of neighbours on one device: nearly always
/// all of them. The order stays, which is what positions of gradients refer to.
template <class T, class Use> void for_each_device(std::span<T> gradients, const Use& use) {
  for (auto begin = gradients.begin(); begin != gradients.end();) {
    const Device device = begin->device();
    const auto end =
        std::find_if(begin, gradients.end(), [&](const Tensor& x) { return x.device() != device; });
    use(std::span<T>(begin, end), backend_for(device));
    begin = end;
  }
}

/// Each *= factor, an f32 scalar that may lie on another device.
void scale_gradients(std::span<Tensor> gradients, const Tensor& factor);

/// The p-norm of all of them as one vector, accumulated in f64, an f64 scalar on the device of the
/// first; 0 of none. Throws UsageError for p that is not positive.
Tensor norm_of(std::span<const Tensor> gradients, double p = 2);

}  // namespace halftone::optim
