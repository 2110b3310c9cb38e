// Lists of gradients, possibly on several devices: shared by scalers, clipping and norms.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include <halftone/core/backend.h>

namespace halftone::optim {

/// Calls use(gradients, backend) for each run of neighbors on one device: nearly always all of
/// them. The order does not change, because positions of gradients refer to it.
template <class T, class Use> void for_each_device(std::span<T> gradients, const Use& use) {
  for (auto begin = gradients.begin(); begin != gradients.end();) {
    const Device device = begin->device();
    const auto end =
        std::find_if(begin, gradients.end(), [&](const Tensor& x) { return x.device() != device; });
    use(std::span<T>(begin, end), backend_for(device));
    begin = end;
  }
}

/// Multiplies each gradient by `factor`, an f32 scalar that may be on another device.
void scale_gradients(std::span<Tensor> gradients, const Tensor& factor);

/// Returns the p-norm of all of them as one vector, accumulated in f64: an f64 scalar on the device
/// of the first; 0 for an empty list. Throws UsageError for p that is not positive.
Tensor norm_of(std::span<const Tensor> gradients, double p = 2);

}  // namespace halftone::optim
