// Convolution as implicit matrix products: windows of the image times the weights.
// Used where oneDNN is not: builds without it, instruction sets for which it has only scalar code,
// and shapes for which its kernels are slower.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <vector>

#include <halftone/backends/cpu/gemm_blocking.h>
#include <halftone/backends/cpu/staging.h>
#include <halftone/core/backend.h>
#include <halftone/core/factory.h>
#include <halftone/core/tensor.h>

namespace halftone::cpu {

/// Returns whether these functions support a convolution: f32, and groups wide enough for a
/// product.
bool products_serve(const Tensor& x, const Tensor& w, const ConvGeometry& g);

enum class ConvPass : uint8_t { forward, backward_data, backward_weights };
/// Returns whether they should be tried before oneDNN: a rule of dtype and shapes for CPUs with
/// AVX2 and no wider vectors, and for CPUs with AMX. `image`: x or its gradient. bench/conv_paths
/// measures the times that the rule is based on.
bool products_win(ConvPass pass, const Tensor& image, const Tensor& w, const ConvGeometry& g);

void conv_by_products(const Tensor& x, const Tensor& w, const Tensor& bias, const ConvGeometry& g,
                      Tensor& y);
void conv_backward_data_by_products(const Tensor& dy, const Tensor& w, const ConvGeometry& g,
                                    Tensor& dx);
/// Does not compute the gradient of the bias, which is a sum over dy.
void conv_backward_weights_by_products(const Tensor& x, const Tensor& dy, const ConvGeometry& g,
                                       Tensor& dw);

/// The same for bf16, with the CPU's bf16 instructions; the gradient of the weights has any dtype.
bool bf16_products_serve(const Tensor& x, const Tensor& w, const ConvGeometry& g);
void conv_by_bf16_products(const Tensor& x, const Tensor& w, const Tensor& bias,
                           const ConvGeometry& g, Tensor& y);
void conv_backward_data_by_bf16_products(const Tensor& dy, const Tensor& w, const ConvGeometry& g,
                                         Tensor& dx);
void conv_backward_weights_by_bf16_products(const Tensor& x, const Tensor& dy,
                                            const ConvGeometry& g, Tensor& dw);

// Depthwise convolutions, of f32: each channel has one filter of its own. Used if oneDNN is not:
// builds without it, and portable bits (core/device.h).

/// Returns whether these functions support a convolution: f32, with as many groups as channels in
/// and channels out.
bool depthwise_serves(const Tensor& image, const Tensor& w, const ConvGeometry& g);

void depthwise_conv(const Tensor& x, const Tensor& w, const Tensor& bias, const ConvGeometry& g,
                    Tensor& y);
void depthwise_backward_data(const Tensor& dy, const Tensor& w, const ConvGeometry& g, Tensor& dx);
/// Does not compute the gradient of the bias, which is a sum over dy.
void depthwise_backward_weights(const Tensor& x, const Tensor& dy, const ConvGeometry& g,
                                Tensor& dw);

// The windows of a convolution over an image, as the rows of a matrix that is never stored:
// products read them from their pixels in place (an implicit matrix product, as in Chetlur et al.
// 2014). Images are NHWC, f32 or bf16.

struct Tap {
  int64_t row, column;
};

/// A grid of pixels, row by row, image by image, each with a window of source pixels. Tap (r, c) of
/// the grid's pixel (i, j) is at row i step[0] + r and column j step[1] + c. Pixels outside of the
/// source are zero. A window is one row of the matrix; its entries are ordered by tap, and within a
/// tap by channel.
template <class Element> struct Windows {
  const Element* source;  // the first channel in use, of the first image
  int64_t images, rows, columns;
  int64_t source_rows, source_columns;
  int64_t channels;  // channels in use, of `pixel` in all
  int64_t pixel;
  std::array<int64_t, 2> step;
  std::vector<Tap> taps;

  int64_t pixels() const { return images * rows * columns; }
  int64_t depth() const { return int64_t(taps.size()) * channels; }
};

/// Finds `count` windows in memory, for a product of pieces (simd/kernels.h): pieces[tile][tap][row
/// of the tile]. `zeros`, with as many elements as channels, replaces pixels outside and rows after
/// the last.
void find_windows(const Windows<float>& w, int64_t first, int64_t count, const float* zeros,
                  const float** pieces);
/// Packs entries [begin, end) of `count` windows, which are the product's depth, into a panel
/// `width` wide: of columns (pack_columns), or of rows (pack_rows). Widens bf16.
void pack_window_entries(const Windows<float>& w, int64_t first, int64_t count, int64_t begin,
                         int64_t end, int64_t width, float* panel);
void pack_window_entries(const Windows<uint16_t>& w, int64_t first, int64_t count, int64_t begin,
                         int64_t end, int64_t width, float* panel);

/// Packs entries [begin, end) of `count` windows, at most 32, into a panel of rows (simd/panels.h).
void pack_window_rows(const Windows<uint16_t>& w, int64_t first, int64_t count, int64_t begin,
                      int64_t end, uint16_t* panel);
/// Packs entries [begin, end) of `count` windows, which are their depth, into panels of columns.
void pack_window_columns(const Windows<uint16_t>& w, int64_t first, int64_t count, int64_t begin,
                         int64_t end, uint16_t* panels);

// A convolution as windows: over the image for forward and for the gradient of the
// weights, over the gradient of the result for the gradient of the image.

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

// Gradients of few weights from many pixels, as in first layers, whose images have one or three
// channels. A product with the weights' gradient as its result (conv.cpp) is a thin matrix
// there, with little work to share among threads.

inline constexpr int64_t few_weights = 1 << 14;  // their sums stay in the second-level cache

/// Computes dw^T [T C, O] = windows of x^T dy, for few weights and many pixels. dy is read in
/// place. A task takes a number of pixels that depends only on sizes.
template <class Element> class FewWeights {
 public:
  FewWeights(const Windows<Element>& windows, const Element* dy, int64_t out)
      : windows_(windows),
        dy_{dy, is_float ? simd::Element::f32 : simd::Element::bf16, out, 1},
        out_(out),
        share_(even_piece(windows.pixels(), std::max<int64_t>(most_depth, windows.pixels() / 32),
                          16)) {}

  void add_up(float* to) const {
    const int64_t size = windows_.depth() * out_,
                  tasks = reference::pieces_of(windows_.pixels(), share_);
    Workspace<float> sums(tasks * size);
    parallel_tasks(tasks, [&](int64_t task) {
      const int64_t begin = task * share_, end = std::min(begin + share_, windows_.pixels());
      multiply(begin, end, sums.data() + task * size);
    });
    std::copy_n(sums.data(), size, to);
    for (int64_t task = 1; task < tasks; ++task)
      simd_kernels().accumulate(sums.data() + task * size, to, size);
  }

 private:
  static constexpr bool is_float = std::is_same_v<Element, float>;
  static constexpr int64_t most_depth = 512;  // pixels packed at a time

  void multiply(int64_t begin, int64_t end, float* sums) const {
    const simd::Kernels& k = simd_kernels();
    const int64_t width = k.tile_columns, entries = windows_.depth();
    Workspace<float> rows(k.tile_rows * most_depth);
    // Packs panels of dy, beginning with the first one that is not read in place.
    const int64_t packed_from = is_float ? out_ / width * width : 0;
    Workspace<float> panels((reference::pieces_of(out_, width) * width - packed_from) * most_depth);
    for (int64_t p = begin; p < end; p += most_depth) {
      const int64_t depth = std::min(most_depth, end - p);
      if (packed_from < out_)
        k.pack_columns(part(dy_, p, packed_from), depth, out_ - packed_from, panels.data());
      for (int64_t i = 0; i < entries; i += k.tile_rows) {
        const int64_t height = std::min<int64_t>(k.tile_rows, entries - i);
        pack_window_entries(windows_, p, depth, i, i + height, k.tile_rows, rows.data());
        for (int64_t j = 0; j < out_; j += width) {
          const bool in_place = j < packed_from;
          const float* columns = in_place ? static_cast<const float*>(part(dy_, p, j).data)
                                          : panels.data() + (j - packed_from) * depth;
          k.tile_product(depth, depth, rows.data(), columns, in_place ? dy_.row : width, height,
                         std::min<int64_t>(width, out_ - j), nullptr, p > begin,
                         sums + i * out_ + j, out_);
        }
      }
    }
  }

  const Windows<Element>& windows_;
  simd::Matrix dy_;
  int64_t out_, share_;
};

/// Computes dw = dy^T windows, for one group.
template <class Element>
void few_weights_gradient(const ConvSizes<Element>& s, const Windows<Element>& windows,
                          const Element* dy, Tensor& dw) {
  const MemoryScope scope(MemoryUse::workspace);
  Tensor turned = empty({s.kernel_rows, s.kernel_columns, s.in, s.out});
  FewWeights<Element>(windows, dy, s.out).add_up(turned.data<float>());
  backend_for(dw).copy(views::permute(turned, {3, 2, 0, 1}), dw);
}

}  // namespace halftone::cpu
