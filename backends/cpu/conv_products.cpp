// With P pixels of output, taps T = kh kw, C channels in and O out, per group:
//   y [P, O] = windows of x [P, T C] w^T      dw [O, T C] = dy^T windows of x
//   dx [P, C] = windows of dy [P, T O] w, once for each place of a pixel between strides: with
//   stride s only every s-th tap reaches it.
// Weights are packed once; windows are read where they lie, a block of them at a time, so that they
// stay in a thread's second-level cache while all weights pass.
#include <halftone/backends/cpu/conv_products.h>

#include <optional>
#include <vector>

#include <halftone/backends/cpu/block_products.h>
#include <halftone/backends/cpu/blocked_product.h>
#include <halftone/backends/cpu/windows.h>
#include <halftone/core/factory.h>
#include <halftone/core/views.h>

namespace halftone::cpu {

namespace {
constexpr int64_t block_depth =
    384;  // a panel of weights, depth x tile_columns floats, stays near the first-level cache
constexpr int64_t few_channels = 8;

struct Sizes {
  int64_t images, groups, in, out, rows, columns, out_rows, out_columns, kernel_rows,
      kernel_columns;
  ConvGeometry g;

  Sizes(const Tensor& x, const Tensor& w, const Tensor& y, const ConvGeometry& geometry)
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

  int64_t taps() const { return kernel_rows * kernel_columns; }
  int64_t window() const { return taps() * in; }

  /// The windows of the output's pixels over one group of x, or of its padded() copy.
  Windows forward(const float* x, int64_t group) const {
    if (is_padded()) return over_padded(x);
    Windows w{.source = x + group * in,
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

  // Of few channels the neighbours in a window's row are one piece, if the image has its padding.
  bool is_padded() const {
    return groups == 1 && in < few_channels && kernel_columns > 1 && g.dilation[1] == 1;
  }
  int64_t padded_rows() const {
    return (out_rows - 1) * g.stride[0] + (kernel_rows - 1) * g.dilation[0] + 1;
  }
  int64_t padded_columns() const { return (out_columns - 1) * g.stride[1] + kernel_columns; }
  /// x, or into `buffer` with zeros around it, whichever forward() takes.
  const float* padded(const float* x, std::optional<Workspace<float>>& buffer) const {
    if (!is_padded()) return x;
    const int64_t wide = padded_columns(), high = padded_rows();
    buffer.emplace(images * high * wide * in);
    parallel_pieces(images * high, 16, [&](int64_t begin, int64_t end) {
      for (int64_t line = begin; line < end; ++line) {
        float* to = buffer->data() + line * wide * in;
        std::fill_n(to, wide * in, 0.0F);
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
  Windows over_padded(const float* x) const {
    Windows w{.source = x,
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

/// w [out, in, kh, kw] as [out, kh, kw, in], the order of windows.
Tensor channels_innermost(const Tensor& w) {
  const MemoryScope scope(MemoryUse::workspace);
  return views::contiguous(views::permute(w, {0, 2, 3, 1}));
}

/// Weights of some taps as the right-hand side of a product of [taps depth, columns]: of tap t
/// element (i, j) is data[tap[t] + i row + j column].
struct Weights {
  const float* data;
  std::vector<int64_t> tap;
  int64_t depth, columns, row, column;

  /// In panels of all the depth, packed by all threads.
  void pack(float* to) const {
    const simd::Kernels& kernels = simd_kernels();
    const int64_t tile = kernels.tile_columns;
    parallel_tasks(reference::pieces_of(columns, tile), [&](int64_t panel) {
      float* part = to + panel * tile * depth * int64_t(tap.size());
      for (const int64_t offset : tap) {
        const float* from = data + offset + panel * tile * column;
        kernels.pack_columns({from, simd::Element::f32, row, column}, depth,
                             std::min(tile, columns - panel * tile), part);
        part += depth * tile;
      }
    });
  }
};

/// windows times weights, handed on in blocks: take(first pixel, pixels, first column, columns,
/// block, stride of its rows). Sums are in slices of the depth, whatever the threads.
template <class Take>
void multiply_windows(const Windows& windows, const Weights& weights, const float* bias,
                      const Take& take) {
  const int64_t depth = windows.depth(), n = weights.columns;
  const int64_t rows = FloatBlocks::block_rows(), unit = FloatBlocks::column_unit();
  // Slices of the depth: whole taps, or parts of one.
  const int64_t taps = int64_t(windows.taps.size()), channels = windows.channels;
  const int64_t channels_at_once = even_piece(channels, block_depth, 1);
  const int64_t taps_at_once = even_piece(taps, std::max<int64_t>(1, block_depth / channels), 1);
  const std::vector<float> zeros(std::size_t(channels), 0.0F);
  Workspace<float> packed(FloatBlocks::packed_columns(depth, n));
  weights.pack(packed.data());
  // Few pixels: threads share the columns, too.
  const int64_t row_blocks = reference::pieces_of(windows.pixels(), rows);
  const int64_t wanted = reference::pieces_of(2 * int64_t(omp_get_max_threads()), row_blocks);
  const int64_t width = even_piece(n, std::max(unit, n / wanted), unit);
  const int64_t column_blocks = reference::pieces_of(n, width);
#pragma omp parallel if (windows.pixels() * depth * n > (1 << 18))
  {
    const simd::Kernels& kernels = simd_kernels();
    const int64_t tile = kernels.tile_rows;
    Workspace<const float*> pieces(rows / tile * taps * tile);
    Workspace<float> block(rows * width);
#pragma omp for schedule(static)
    for (int64_t task = 0; task < row_blocks * column_blocks; ++task) {
      const int64_t first = task / column_blocks * rows, j0 = task % column_blocks * width;
      const int64_t count = std::min(rows, windows.pixels() - first),
                    columns = std::min(width, n - j0);
      find_windows(windows, first, count, zeros.data(), pieces.data());
      for (int64_t tap = 0; tap < taps; tap += taps_at_once)
        for (int64_t c = 0; c < channels; c += channels_at_once) {
          const int64_t these = std::min(taps_at_once, taps - tap),
                        length = std::min(channels_at_once, channels - c);
          const bool begins = tap == 0 && c == 0;
          for (int64_t j = 0; j < columns; j += unit)
            for (int64_t i = 0; i < count; i += tile)
              kernels.tile_product_of_pieces(
                  these, length, pieces.data() + i * taps + tap * tile, c,
                  packed.data() + (j0 + j) * depth + (tap * channels + c) * unit,
                  std::min(tile, count - i), std::min(unit, columns - j),
                  bias && begins ? bias + j0 + j : nullptr, !begins, block.data() + i * width + j,
                  width);
        }
      take(first, count, j0, columns, block.data(), width);
    }
  }
}
}  // namespace

bool products_serve(const Tensor& x, const Tensor& w, const ConvGeometry& g) {
  const bool wide = w.size(0) / g.groups >= 4 && w.size(1) * w.size(2) * w.size(3) >= 4;
  return x.dtype() == f32 && w.dtype() == f32 && x.numel() > 0 && wide;
}

void conv_by_products(const Tensor& x, const Tensor& w, const Tensor& bias, const ConvGeometry& g,
                      Tensor& y) {
  const Sizes s(x, w, y, g);
  const Tensor innermost = channels_innermost(w);
  std::optional<Workspace<float>> buffer;
  const float* const source = s.padded(x.data<float>(), buffer);
  const int64_t pixel = s.groups * s.out;
  for (int64_t group = 0; group < s.groups; ++group) {
    Weights weights{.data = innermost.data<float>() + group * s.out * s.window(),
                    .tap = {},
                    .depth = s.in,
                    .columns = s.out,
                    .row = 1,
                    .column = s.window()};
    for (int64_t t = 0; t < s.taps(); ++t) weights.tap.push_back(t * s.in);
    float* to = y.data<float>() + group * s.out;
    multiply_windows(s.forward(source, group), weights,
                     bias.defined() ? bias.data<float>() + group * s.out : nullptr,
                     [&](int64_t first, int64_t count, int64_t j, int64_t columns,
                         const float* block, int64_t stride) {
                       for (int64_t p = 0; p < count; ++p)
                         std::copy_n(block + p * stride, columns, to + (first + p) * pixel + j);
                     });
  }
}

namespace {
/// The pixels of dx at (row, column) between strides, and the weights of the taps that reach them.
struct Phase {
  Windows windows;
  Weights weights;

  Phase(const Sizes& s, const float* dy, const float* w, int64_t row, int64_t column)
      : windows{.source = dy,
                .images = s.images,
                .rows = reference::pieces_of(s.rows - row, s.g.stride[0]),
                .columns = reference::pieces_of(s.columns - column, s.g.stride[1]),
                .source_rows = s.out_rows,
                .source_columns = s.out_columns,
                .channels = s.out,
                .pixel = s.groups * s.out,
                .step = {1, 1},
                .taps = {}},
        weights{
            .data = w, .tap = {}, .depth = s.out, .columns = s.in, .row = s.window(), .column = 1} {
    for (int64_t ky = 0; ky < s.kernel_rows; ++ky)
      for (int64_t kx = 0; kx < s.kernel_columns; ++kx) {
        const int64_t r = row + s.g.padding[0] - ky * s.g.dilation[0],
                      c = column + s.g.padding[1] - kx * s.g.dilation[1];
        if (r % s.g.stride[0] != 0 || c % s.g.stride[1] != 0) continue;
        windows.taps.push_back({r / s.g.stride[0], c / s.g.stride[1]});
        weights.tap.push_back((ky * s.kernel_columns + kx) * s.in);
      }
  }
};
}  // namespace

void conv_backward_data_by_products(const Tensor& dy, const Tensor& w, const ConvGeometry& g,
                                    Tensor& dx) {
  const Sizes s(dx, w, dy, g);
  const Tensor innermost = channels_innermost(w);
  const int64_t pixel = s.groups * s.in;
  if (s.kernel_rows < g.stride[0] || s.kernel_columns < g.stride[1] || g.dilation[0] > 1 ||
      g.dilation[1] > 1)
    std::fill_n(dx.data<float>(), dx.numel(), 0.0F);  // some pixels may be reached by no tap
  for (int64_t group = 0; group < s.groups; ++group)
    for (int64_t row = 0; row < std::min(g.stride[0], s.rows); ++row)
      for (int64_t column = 0; column < std::min(g.stride[1], s.columns); ++column) {
        const Phase phase(s, dy.data<float>() + group * s.out,
                          innermost.data<float>() + group * s.out * s.window(), row, column);
        if (phase.windows.taps.empty()) continue;
        const Windows& grid = phase.windows;
        float* to = dx.data<float>() + group * s.in;
        multiply_windows(grid, phase.weights, nullptr,
                         [&](int64_t first, int64_t count, int64_t j, int64_t columns,
                             const float* block, int64_t stride) {
                           for (int64_t p = first; p < first + count; ++p) {
                             const int64_t image = p / (grid.rows * grid.columns),
                                           r = p / grid.columns % grid.rows * g.stride[0] + row,
                                           c = p % grid.columns * g.stride[1] + column;
                             std::copy_n(block + (p - first) * stride, columns,
                                         to + ((image * s.rows + r) * s.columns + c) * pixel + j);
                           }
                         });
      }
}

void conv_backward_weights_by_products(const Tensor& x, const Tensor& dy, const ConvGeometry& g,
                                       Tensor& dw) {
  const Sizes s(x, dw, dy, g);
  const simd::Kernels& kernels = simd_kernels();
  const MemoryScope scope(MemoryUse::workspace);
  Tensor gradient = empty({dw.size(0), s.kernel_rows, s.kernel_columns, s.in});
  std::optional<Workspace<float>> buffer;
  const float* const source = s.padded(x.data<float>(), buffer);
  for (int64_t group = 0; group < s.groups; ++group) {
    const Windows windows = s.forward(source, group);
    const simd::Matrix outputs{dy.data<float>() + group * s.out, simd::Element::f32, 1,
                               s.groups * s.out};
    blocked_product(
        s.out, s.window(), windows.pixels(),
        {.c = gradient.data<float>() + group * s.out * s.window(), .stride = s.window()},
        [&](int64_t row, int64_t rows, int64_t first, int64_t count, float* panels) {
          kernels.pack_rows(part(outputs, row, first), rows, count, panels);
        },
        [&](int64_t entry, int64_t entries, int64_t first, int64_t count, float* buffer) -> Panel {
          pack_window_columns(windows, first, count, entry, entry + entries, buffer);
          return {buffer, kernels.tile_columns};
        });
  }
  backend_for(dw).copy(views::permute(gradient, {0, 3, 1, 2}), dw);
}

}  // namespace halftone::cpu
