// A convolution as windows (windows.h): over the image for forward and for the gradient of the
// weights, over the gradient of the result for the gradient of the image.
#pragma once

#include <optional>
#include <vector>

#include <halftone/backends/cpu/product_pieces.h>
#include <halftone/backends/cpu/staging.h>
#include <halftone/backends/cpu/windows.h>
#include <halftone/core/backend.h>
#include <halftone/core/tensor.h>

namespace halftone::cpu {

inline constexpr int64_t few_channels = 8;

/// One convolution; Element: the type of its images' elements.
template <class Element> struct ConvSizes {
  int64_t images, groups, in, out, rows, columns, out_rows, out_columns, kernel_rows,
      kernel_columns;
  ConvGeometry g;

  ConvSizes(const Tensor& x, const Tensor& w, const Tensor& y, const ConvGeometry& geometry)
      : images(x.size(0)),
        groups(geometry.groups),
        in(w.size(1)),
        out(w.size(0) / geometry.groups),
        rows(x.size(2)),
        columns(x.size(3)),
        out_rows(y.size(2)),
        out_columns(y.size(3)),
        kernel_rows(w.size(2)),
        kernel_columns(w.size(3)),
        g(geometry) {}

  /// Returns whether some tap reaches every pixel of the image.
  bool reaches_all() const {
    return kernel_rows >= g.stride[0] && kernel_columns >= g.stride[1] && g.dilation[0] == 1 &&
           g.dilation[1] == 1;
  }
  int64_t taps() const { return kernel_rows * kernel_columns; }
  int64_t window() const { return taps() * in; }

  /// Returns the windows of the output's pixels over one group of x, or over its padded() copy.
  Windows<Element> forward(const Element* x, int64_t group) const {
    if (is_padded()) return over_padded(x);
    Windows<Element> w{.source = x + group * in,
                       .images = images,
                       .rows = out_rows,
                       .columns = out_columns,
                       .source_rows = rows,
                       .source_columns = columns,
                       .channels = in,
                       .pixel = groups * in,
                       .step = {g.stride[0], g.stride[1]},
                       .taps = {}};
    for (int64_t ky = 0; ky < kernel_rows; ++ky)
      for (int64_t kx = 0; kx < kernel_columns; ++kx)
        w.taps.push_back({ky * g.dilation[0] - g.padding[0], kx * g.dilation[1] - g.padding[1]});
    return w;
  }

  // With few channels, the neighbors in a window's row form one piece, if the image has its
  // padding.
  bool is_padded() const {
    return groups == 1 && in < few_channels && kernel_columns > 1 && g.dilation[1] == 1;
  }
  int64_t padded_rows() const {
    return (out_rows - 1) * g.stride[0] + (kernel_rows - 1) * g.dilation[0] + 1;
  }
  int64_t padded_columns() const { return (out_columns - 1) * g.stride[1] + kernel_columns; }
  /// Returns the form that forward() needs: x, or a copy in `buffer` with zeros around it.
  const Element* padded(const Element* x, std::optional<Workspace<Element>>& buffer) const {
    if (!is_padded()) return x;
    const int64_t wide = padded_columns(), high = padded_rows();
    buffer.emplace(images * high * wide * in);
    parallel_pieces(images * high, 16, [&](int64_t begin, int64_t end) {
      for (int64_t line = begin; line < end; ++line) {
        Element* to = buffer->data() + line * wide * in;
        std::fill_n(to, wide * in, Element{});
        const int64_t row = line % high - g.padding[0];
        const int64_t first = std::max<int64_t>(0, -g.padding[1]),
                      count = std::min(columns - first, wide - g.padding[1] - first);
        if (row >= 0 && row < rows && count > 0)
          std::copy_n(x + ((line / high * rows + row) * columns + first) * in, count * in,
                      to + (first + g.padding[1]) * in);
      }
    });
    return buffer->data();
  }

 private:
  Windows<Element> over_padded(const Element* x) const {
    Windows<Element> w{.source = x,
                       .images = images,
                       .rows = out_rows,
                       .columns = out_columns,
                       .source_rows = padded_rows(),
                       .source_columns = padded_columns(),
                       .channels = kernel_columns * in,
                       .pixel = in,
                       .step = {g.stride[0], g.stride[1]},
                       .taps = {}};
    for (int64_t ky = 0; ky < kernel_rows; ++ky) w.taps.push_back({ky * g.dilation[0], 0});
    return w;
  }
};

/// Returns w [out, in, kh, kw] as [out, kh, kw, in], the order of windows.
inline Tensor channels_innermost(const Tensor& w) {
  const MemoryScope scope(MemoryUse::workspace);
  return views::contiguous(views::permute(w, {0, 2, 3, 1}));
}

/// The pixels of dx at position (row, column) between strides: their windows of dy, and the start
/// of each tap that reaches them in w, which is channels_innermost().
template <class Element> struct ConvPhase {
  Windows<Element> windows;
  std::vector<int64_t> taps;

  /// dy: of one group.
  ConvPhase(const ConvSizes<Element>& s, const Element* dy, int64_t row, int64_t column)
      : windows{.source = dy,
                .images = s.images,
                .rows = reference::pieces_of(s.rows - row, s.g.stride[0]),
                .columns = reference::pieces_of(s.columns - column, s.g.stride[1]),
                .source_rows = s.out_rows,
                .source_columns = s.out_columns,
                .channels = s.out,
                .pixel = s.groups * s.out,
                .step = {1, 1},
                .taps = {}} {
    for (int64_t ky = 0; ky < s.kernel_rows; ++ky)
      for (int64_t kx = 0; kx < s.kernel_columns; ++kx) {
        const int64_t r = row + s.g.padding[0] - ky * s.g.dilation[0],
                      c = column + s.g.padding[1] - kx * s.g.dilation[1];
        if (r % s.g.stride[0] != 0 || c % s.g.stride[1] != 0) continue;
        windows.taps.push_back({r / s.g.stride[0], c / s.g.stride[1]});
        taps.push_back((ky * s.kernel_columns + kx) * s.in);
      }
  }
};

/// Calls body(group, phase, pixel) for every position between strides that taps reach. pixel(p) is
/// the pixel of dx, counted through all images, to which window p of the phase belongs.
template <class Element, class Body>
void for_phases(const ConvSizes<Element>& s, const Element* dy, const Body& body) {
  const auto& stride = s.g.stride;
  for (int64_t group = 0; group < s.groups; ++group)
    for (int64_t row = 0; row < std::min(stride[0], s.rows); ++row)
      for (int64_t column = 0; column < std::min(stride[1], s.columns); ++column) {
        const ConvPhase<Element> phase(s, dy + group * s.out, row, column);
        if (phase.windows.taps.empty()) continue;
        body(group, phase, [&](int64_t p) {
          const Windows<Element>& grid = phase.windows;
          const int64_t image = p / (grid.rows * grid.columns),
                        r = p / grid.columns % grid.rows * stride[0] + row,
                        c = p % grid.columns * stride[1] + column;
          return (image * s.rows + r) * s.columns + c;
        });
      }
}

}  // namespace halftone::cpu
