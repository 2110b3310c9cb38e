// Pooling along one axis: which inputs each window covers, and which windows cover each input. A
// pooling is the product of two axes, sliding or adaptive.
#pragma once

#include <algorithm>
#include <vector>

#include <halftone/backends/image_axis.h>

namespace halftone::reference {

/// The windows of one axis, and the windows that contain each input position.
struct PoolAxis {
  int64_t in, out;
  int64_t step;                // between the positions of a window
  std::vector<Range> windows;  // of each output, without padding
  std::vector<Range> readers;  // range of outputs with all windows that contain an input

  template <class Window>
  PoolAxis(int64_t in_size, int64_t out_size, int64_t step_in_window, const Window& window)
      : in(in_size), out(out_size), step(step_in_window) {
    readers.assign(std::size_t(in), Range{0, 0});
    for (int64_t o = 0; o < out; ++o) {
      const auto [begin, end] = window(o);
      const Range inside{std::clamp<int64_t>(begin, 0, in), std::clamp<int64_t>(end, 0, in)};
      windows.push_back(inside);
      for (int64_t i = inside.begin; i < inside.end; i += step) {
        Range& reader = readers[std::size_t(i)];
        if (reader.length() == 0) reader.begin = o;
        reader.end = o + 1;
      }
    }
  }
  const Range& window(int64_t o) const { return windows[std::size_t(o)]; }
  const Range& reader(int64_t i) const { return readers[std::size_t(i)]; }
};

inline PoolAxis sliding_axis(int64_t in, int64_t out, const PoolGeometry& g, std::size_t axis) {
  const SlidingWindows windows(in, out, g, axis);
  return PoolAxis(in, out, windows.dilation, [&](int64_t o) { return windows.window(o); });
}

/// Bins as in PyTorch: they cover the input and may overlap by one position.
inline PoolAxis adaptive_axis(int64_t in, int64_t out) {
  const AdaptiveWindows windows{in, out};
  return PoolAxis(in, out, 1, [&](int64_t o) { return windows.window(o); });
}

}  // namespace halftone::reference
