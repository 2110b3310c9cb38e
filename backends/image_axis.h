// The positions that pooling and interpolation read along one image axis, in PyTorch's coordinates:
// shared by backends on host and device. Both axes of an image are pooled or resized alike.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include <halftone/core/backend.h>
#include <halftone/core/language.h>

namespace halftone {

/// Positions begin .. end - 1 of an axis.
struct Range {
  int64_t begin, end;
  HT_HD int64_t length() const { return end - begin; }
};

/// Windows of one size, `stride` apart; the first starts `padding` before the image. The elements
/// of a window are `dilation` apart.
struct SlidingWindows {
  int64_t in, out, span, stride, padding, dilation;  // span: first through last element

  SlidingWindows(int64_t in_size, int64_t out_size, const PoolGeometry& g, std::size_t axis)
      : in(in_size),
        out(out_size),
        span((g.kernel[axis] - 1) * g.dilation[axis] + 1),
        stride(g.stride[axis]),
        padding(g.padding[axis]),
        dilation(g.dilation[axis]) {}
  /// Returns the inputs in an output's window that are not padding: every dilation-th of the range.
  HT_HD Range window(int64_t o) const {
    const int64_t begin = o * stride - padding, end = begin + span;
    int64_t first = begin < 0 ? 0 : begin < in ? begin : in;
    if (begin < 0 && dilation > 1) {
      first = begin + (dilation - 1 - begin) / dilation * dilation;
      if (first > in) first = in;
    }
    return {first, end < first ? first : end < in ? end : in};
  }
  /// Returns whether the window of an output reads an input within its range.
  HT_HD bool reads(int64_t o, int64_t i) const {
    return (i + padding - o * stride) % dilation == 0;
  }
  /// Returns the outputs whose windows contain an input; with dilation, some may not read it.
  HT_HD Range readers(int64_t i) const {
    const int64_t place = i + padding;
    const int64_t begin = place < span ? 0 : (place - span) / stride + 1;
    const int64_t end = place / stride + 1;
    return {begin, end < begin ? begin : end < out ? end : out};
  }
};

/// Bins that cover the input and may overlap by one place.
struct AdaptiveWindows {
  int64_t in, out;
  HT_HD Range window(int64_t o) const { return {o * in / out, ((o + 1) * in + out - 1) / out}; }
  HT_HD Range readers(int64_t i) const { return {i * out / in, ((i + 1) * out + in - 1) / in}; }
};

/// The two inputs of an interpolated output: (1 - weight) x[first] + weight x[second].
struct Tap {
  int64_t first, second;
  double weight;
  /// Returns the weight of input i.
  HT_HD double of(int64_t i) const {
    return (i == first ? 1 - weight : 0.0) + (i == second ? weight : 0.0);
  }
};

/// The two inputs around each output; neither decreases from one output to the next.
struct ResizeTaps {
  int64_t in, out;
  Interpolation mode;
  bool align_corners;
  double step;

  ResizeTaps(int64_t in_size, int64_t out_size, const InterpolationGeometry& g, std::size_t axis)
      : in(in_size),
        out(out_size),
        mode(g.mode),
        align_corners(g.align_corners),
        step(g.step[axis]) {}
  HT_HD Tap tap(int64_t o) const {
    return mode == Interpolation::nearest ? nearest(o) : between(place_of(o));
  }

 private:
  /// PyTorch multiplies in float, which matters if the product is close to a whole number.
  HT_HD Tap nearest(int64_t o) const {
    const auto product = int64_t(float(o) * float(step));
    const int64_t i = product < in ? product : in - 1;
    return {i, i, 0};
  }
  /// Returns the position of an output among the inputs, whose centers are 0, 1, 2, ...
  HT_HD double place_of(int64_t o) const {
    if (align_corners) return out > 1 ? double(o) * double(in - 1) / double(out - 1) : 0.0;
    const double place = (double(o) + 0.5) * step - 0.5;
    return place > 0 ? place : 0.0;
  }
  HT_HD Tap between(double place) const {
    const int64_t first = int64_t(place) < in ? int64_t(place) : in - 1;
    const double weight = place - double(first);
    return {first, first + 1 < in ? first + 1 : in - 1, weight < 1 ? weight : 1.0};
  }
};

}  // namespace halftone

// Pooling along one axis: which inputs each window covers, and which windows cover each input. A
// pooling is the product of two axes, sliding or adaptive.

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

// Interpolation along one axis: for each output, the two inputs around it and the weight of the
// second; for each input, the outputs that read it. Images are resized along both axes in turn.

struct ResizeAxis {
  int64_t in, out;
  std::vector<Tap> taps;       // of each output
  std::vector<Range> readers;  // neighboring outputs that may read an input

  ResizeAxis(int64_t in_size, int64_t out_size, const InterpolationGeometry& g, std::size_t axis)
      : in(in_size), out(out_size), readers(std::size_t(in_size), Range{0, 0}) {
    const ResizeTaps formulas(in, out, g, axis);
    for (int64_t o = 0; o < out; ++o) {
      const Tap tap = formulas.tap(o);
      taps.push_back(tap);
      for (int64_t i = tap.first; i <= tap.second; ++i) {
        Range& reader = readers[std::size_t(i)];
        if (reader.length() == 0) reader.begin = o;
        reader.end = o + 1;
      }
    }
  }
  const Tap& tap(int64_t o) const { return taps[std::size_t(o)]; }
  const Range& reader(int64_t i) const { return readers[std::size_t(i)]; }
};

}  // namespace halftone::reference
