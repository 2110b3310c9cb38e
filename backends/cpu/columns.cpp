// With P pixels of output, K = kh kw c entries per window and O output channels, per group:
//   y [P, O] = columns [P, K] w^T      dcolumns [P, K] = dy [P, O] w      dw [O, K] = dy^T columns
// Images are taken a few at a time, a number that depends on sizes only, so that the matrix of
// columns stays within a few MiB.
#include <halftone/backends/cpu/columns.h>

#include <cstring>

#include <halftone/backends/cpu/gemm.h>
#include <halftone/backends/cpu/staging.h>
#include <halftone/core/factory.h>
#include <halftone/core/views.h>

namespace halftone::cpu {

namespace {
constexpr int64_t most_column_floats = int64_t(1) << 21;

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

  int64_t window() const { return kernel_rows * kernel_columns * in; }  // K
  int64_t pixels() const { return out_rows * out_columns; }             // of one image
  int64_t images_at_once() const {
    return std::clamp<int64_t>(most_column_floats / (pixels() * window()), 1, images);
  }
  int64_t x_image() const { return rows * columns * groups * in; }
  int64_t y_image() const { return pixels() * groups * out; }

  /// Calls body(offset in the image, place in the window) for the taps of the window of output
  /// pixel (i, j); the offset is -1 in the padding.
  template <class Body> void taps(int64_t i, int64_t j, const Body& body) const {
    for (int64_t ky = 0; ky < kernel_rows; ++ky) {
      const int64_t r = i * g.stride[0] - g.padding[0] + ky * g.dilation[0];
      for (int64_t kx = 0; kx < kernel_columns; ++kx) {
        const int64_t c = j * g.stride[1] - g.padding[1] + kx * g.dilation[1];
        const bool inside = r >= 0 && r < rows && c >= 0 && c < columns;
        body(inside ? (r * columns + c) * groups * in : -1, (ky * kernel_columns + kx) * in);
      }
    }
  }
};

/// matrix [images * pixels, K] of `count` images from `first`, one group of channels.
void gather_columns(const Sizes& s, const float* x, int64_t first, int64_t count, int64_t group,
                    float* matrix) {
  parallel_pieces(count * s.out_rows, 4, [&](int64_t begin, int64_t end) {
    for (int64_t line = begin; line < end; ++line) {
      const float* image = x + (first + line / s.out_rows) * s.x_image() + group * s.in;
      for (int64_t j = 0; j < s.out_columns; ++j) {
        float* to = matrix + (line * s.out_columns + j) * s.window();
        s.taps(line % s.out_rows, j, [&](int64_t from, int64_t place) {
          const auto bytes = std::size_t(s.in) * sizeof(float);
          if (from >= 0) std::memcpy(to + place, image + from, bytes);
          else std::memset(to + place, 0, bytes);
        });
      }
    }
  });
}

/// dx += what the windows hold, the other way round; one task per image.
void scatter_columns(const Sizes& s, const float* matrix, int64_t first, int64_t count,
                     int64_t group, float* dx) {
  const simd::Kernels& k = simd_kernels();
  parallel_tasks(count, [&](int64_t n) {
    float* image = dx + (first + n) * s.x_image() + group * s.in;
    for (int64_t pixel = 0; pixel < s.pixels(); ++pixel) {
      const float* from = matrix + (n * s.pixels() + pixel) * s.window();
      s.taps(pixel / s.out_columns, pixel % s.out_columns, [&](int64_t to, int64_t place) {
        if (to >= 0) k.accumulate(from + place, image + to, s.in);
      });
    }
  });
}

/// w [out, in, kh, kw] as [out, kh, kw, in], the order of the columns.
Tensor channels_innermost(const Tensor& w) {
  const MemoryScope scope(MemoryUse::workspace);
  return views::contiguous(views::permute(w, {0, 2, 3, 1}));
}

simd::Matrix matrix(const float* data, int64_t row, int64_t column) {
  return {data, simd::Element::f32, row, column};
}

/// Calls body(first image, images, group, columns) for the blocks of a convolution.
template <class Body> void for_blocks(const Sizes& s, const Body& body) {
  const int64_t step = s.images_at_once();
  Workspace<float> columns(step * s.pixels() * s.window());
  for (int64_t first = 0; first < s.images; first += step)
    for (int64_t group = 0; group < s.groups; ++group)
      body(first, std::min(step, s.images - first), group, columns.data());
}
}  // namespace

bool columns_serve(const Tensor& x, const Tensor& w, const ConvGeometry& g) {
  const bool wide = w.size(0) / g.groups >= 4 && w.size(1) * w.size(2) * w.size(3) >= 4;
  return x.dtype() == f32 && w.dtype() == f32 && x.numel() > 0 && wide;
}

void conv_by_columns(const Tensor& x, const Tensor& w, const Tensor& bias, const ConvGeometry& g,
                     Tensor& y) {
  const Sizes s(x, w, y, g);
  const Tensor weights = channels_innermost(w);
  for_blocks(s, [&](int64_t first, int64_t count, int64_t group, float* columns) {
    gather_columns(s, x.data<float>(), first, count, group, columns);
    const float* of_group = weights.data<float>() + group * s.out * s.window();
    gemm(matrix(columns, s.window(), 1), matrix(of_group, 1, s.window()), count * s.pixels(), s.out,
         s.window(),
         {.c = y.data<float>() + first * s.y_image() + group * s.out,
          .stride = s.groups * s.out,
          .bias = bias.defined() ? bias.data<float>() + group * s.out : nullptr});
  });
}

void conv_backward_data_by_columns(const Tensor& dy, const Tensor& w, const ConvGeometry& g,
                                   Tensor& dx) {
  const Sizes s(dx, w, dy, g);
  const Tensor weights = channels_innermost(w);
  std::fill_n(dx.data<float>(), dx.numel(), 0.0f);
  for_blocks(s, [&](int64_t first, int64_t count, int64_t group, float* columns) {
    const float* from = dy.data<float>() + first * s.y_image() + group * s.out;
    const float* of_group = weights.data<float>() + group * s.out * s.window();
    gemm(matrix(from, s.groups * s.out, 1), matrix(of_group, s.window(), 1), count * s.pixels(),
         s.window(), s.out, {.c = columns, .stride = s.window()});
    scatter_columns(s, columns, first, count, group, dx.data<float>());
  });
}

void conv_backward_weights_by_columns(const Tensor& x, const Tensor& dy, const ConvGeometry& g,
                                      Tensor& dw) {
  const Sizes s(x, dw, dy, g);
  const MemoryScope scope(MemoryUse::workspace);
  const Shape innermost{dw.size(0), s.kernel_rows, s.kernel_columns, s.in};
  Tensor gradient = empty(innermost);
  for_blocks(s, [&](int64_t first, int64_t count, int64_t group, float* columns) {
    gather_columns(s, x.data<float>(), first, count, group, columns);
    const float* from = dy.data<float>() + first * s.y_image() + group * s.out;
    gemm(matrix(from, 1, s.groups * s.out), matrix(columns, s.window(), 1), s.out, s.window(),
         count * s.pixels(),
         {.c = gradient.data<float>() + group * s.out * s.window(),
          .stride = s.window(),
          .accumulate = first > 0});
  });
  backend_for(dw).copy(views::permute(gradient, {0, 3, 1, 2}), dw);
}

}  // namespace halftone::cpu
