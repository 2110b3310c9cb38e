// Convolutions as matrix products, without matrices in memory: factors (tiles.h) that map a place
// of the matrix to an element of an image. Pixels are counted over all images, row by row. The
// depth counts the taps of the kernel, row by row, and the channels of a group, channels fastest.
//   forward       y  [pixels of y, out] = windows of x [pixels of y, taps in] w [taps in, out]
//   gradient of x dx [pixels of x, in]  = readers of dy [pixels of x, taps out] w [taps out, in]
//   gradient of w dw [out, taps in]     = dy^T [out, pixels of y] windows of x
// Chetlur et al. 2014, "cuDNN: efficient primitives for deep learning", section 3.
#pragma once

#include <halftone/backends/cuda/images.h>
#include <halftone/backends/cuda/rows.h>
#include <halftone/backends/cuda/tiles.h>
#include <halftone/core/backend.h>

namespace halftone::cuda {

/// Sizes along one image axis.
struct ConvAxis {
  int in, out, kernel, stride, padding, dilation;
};

/// x, w, y as in Backend::conv, or tensors of their shapes.
struct ConvSizes {
  int64_t images;
  int groups, in, out;  // channels per group
  ConvAxis rows, columns;

  ConvSizes(const Tensor& x, const Tensor& w, const ConvGeometry& g, const Tensor& y)
      : images(x.shape()[0]),
        groups(int(g.groups)),
        in(int(w.shape()[1])),
        out(int(w.shape()[0] / g.groups)),
        rows(axis(x, w, g, y, 0)),
        columns(axis(x, w, g, y, 1)) {}

  int taps() const { return rows.kernel * columns.kernel; }
  int64_t in_pixels() const { return images * rows.in * columns.in; }
  int64_t out_pixels() const { return images * rows.out * columns.out; }
  int64_t in_channels() const { return int64_t(groups) * in; }
  int64_t out_channels() const { return int64_t(groups) * out; }

 private:
  static ConvAxis axis(const Tensor& x, const Tensor& w, const ConvGeometry& g, const Tensor& y,
                       int i) {
    const auto d = std::size_t(i);
    return {int(x.shape()[2 + i]), int(y.shape()[2 + i]), int(w.shape()[2 + i]),
            int(g.stride[d]),      int(g.padding[d]),     int(g.dilation[d])};
  }
};

/// Splits depth k into a tap and a channel.
struct TapCount {
  Divisor channels, kernel_columns;
  struct Tap {
    int row, column, channel;
  };
  __device__ Tap at(int64_t k) const {
    const auto [tap, channel] = channels.split(k);
    const auto [row, column] = kernel_columns.split(tap);
    return {int(row), column, channel};
  }
};

/// Splits a pixel's number into image, row and column.
struct PixelCount {
  Divisor columns, rows;
  struct Pixel {
    int64_t image;
    int row, column;
  };
  __device__ Pixel at(int64_t number) const {
    const auto [line, column] = columns.split(number);
    const auto [image, row] = rows.split(line);
    return {image, row, column};
  }
};

/// An image tensor's memory, and the first pixel of a matrix row (or column).
struct PlaceOfPixel {
  int64_t offset;
  int row, column;  // of the window's corner, or of the pixel with padding
};
struct PlaceOfTap {
  int row, column;
  int64_t channel;
};

/// Element (output pixel, tap and channel) of the windows of x.
template <class T> struct Windows {
  const T* x;
  ConvAxis rows, columns;
  int64_t channels, group_channels;
  PixelCount pixels;
  TapCount taps;

  Windows(const Tensor& tensor, const ConvSizes& s)
      : x(tensor.data<T>()),
        rows(s.rows),
        columns(s.columns),
        channels(s.in_channels()),
        group_channels(s.in),
        pixels{Divisor(s.columns.out), Divisor(s.rows.out)},
        taps{Divisor(s.in), Divisor(s.columns.kernel)} {}

  __device__ PlaceOfPixel pixel(int64_t number) const {
    const PixelCount::Pixel p = pixels.at(number);
    return {p.image * rows.in * columns.in * channels, p.row * rows.stride - rows.padding,
            p.column * columns.stride - columns.padding};
  }
  __device__ PlaceOfTap tap(int64_t k) const {
    const TapCount::Tap t = taps.at(k);
    return {t.row * rows.dilation, t.column * columns.dilation, t.channel};
  }
  __device__ compute_t<T> value(const PlaceOfPixel& p, const PlaceOfTap& t) const {
    const int row = p.row + t.row, column = p.column + t.column;
    if (unsigned(row) >= unsigned(rows.in) || unsigned(column) >= unsigned(columns.in)) return 0;
    return widen(x[p.offset + (int64_t(row) * columns.in + column) * channels + t.channel]);
  }
};

/// Windows of pixels as rows of the left matrix.
template <class T> struct WindowRows : Windows<T> {
  using Value = compute_t<T>;
  using Line = PlaceOfPixel;
  using Level = PlaceOfTap;
  using Windows<T>::Windows;

  __device__ Line line(int64_t group, int64_t pixel) const {
    Line place = this->pixel(pixel);
    place.offset += group * this->group_channels;
    return place;
  }
  __device__ Level level(int64_t k) const { return this->tap(k); }
  __device__ Value at(const Line& p, const Level& t) const { return this->value(p, t); }
  __device__ static constexpr bool along_depth() { return true; }
};

/// Windows with taps and channels as columns of the right matrix, pixels along the depth.
template <class T> struct WindowColumns : Windows<T> {
  using Value = compute_t<T>;
  using Line = PlaceOfTap;
  using Level = PlaceOfPixel;
  using Windows<T>::Windows;

  __device__ Line line(int64_t group, int64_t k) const {
    Line place = this->tap(k);
    place.channel += group * this->group_channels;
    return place;
  }
  __device__ Level level(int64_t pixel) const { return this->pixel(pixel); }
  __device__ Value at(const Line& t, const Level& p) const { return this->value(p, t); }
  __device__ static constexpr bool along_depth() { return false; }
};

/// Element (input pixel, tap and output channel): the gradient of the output that reads the input
/// pixel through the tap.
template <class T> struct ReaderRows {
  using Value = compute_t<T>;
  using Line = PlaceOfPixel;
  using Level = PlaceOfTap;
  const T* dy;
  ConvAxis rows, columns;
  int64_t channels, group_channels;
  PixelCount pixels;
  TapCount taps;
  Divisor row_stride, column_stride;

  ReaderRows(const Tensor& tensor, const ConvSizes& s)
      : dy(tensor.data<T>()),
        rows(s.rows),
        columns(s.columns),
        channels(s.out_channels()),
        group_channels(s.out),
        pixels{Divisor(s.columns.in), Divisor(s.rows.in)},
        taps{Divisor(s.out), Divisor(s.columns.kernel)},
        row_stride(s.rows.stride),
        column_stride(s.columns.stride) {}

  __device__ Line line(int64_t group, int64_t number) const {
    const PixelCount::Pixel p = pixels.at(number);
    return {p.image * rows.out * columns.out * channels + group * group_channels,
            p.row + rows.padding, p.column + columns.padding};
  }
  __device__ Level level(int64_t k) const {
    const TapCount::Tap t = taps.at(k);
    return {t.row * rows.dilation, t.column * columns.dilation, t.channel};
  }
  __device__ Value at(const Line& p, const Level& t) const {
    const int row = p.row - t.row, column = p.column - t.column;
    if (row < 0 || column < 0) return 0;
    const int oy = row_stride.quotient(row), ox = column_stride.quotient(column);
    if (oy >= rows.out || ox >= columns.out || oy * rows.stride != row ||
        ox * columns.stride != column)
      return 0;
    return widen(dy[p.offset + (int64_t(oy) * columns.out + ox) * channels + t.channel]);
  }
  __device__ static constexpr bool along_depth() { return true; }
};

/// Weights [out, in / groups, kh, kw] as the right matrix: lines are output channels of a group and
/// the depth counts its input channels, or the other way round.
template <class T> struct Weights {
  using Value = compute_t<T>;
  using Line = const T*;
  using Level = int64_t;
  const T* w;
  int64_t group_step, line_step, channel_step;
  Divisor channels;

  static Weights of_output(const Tensor& w, const ConvSizes& s) {
    const int64_t taps = s.taps();
    return {w.data<T>(), taps * s.in * s.out, s.in * taps, taps, Divisor(s.in)};
  }
  static Weights of_input(const Tensor& w, const ConvSizes& s) {
    const int64_t taps = s.taps();
    return {w.data<T>(), taps * s.in * s.out, taps, s.in * taps, Divisor(s.out)};
  }
  __device__ Line line(int64_t group, int64_t i) const {
    return w + group * group_step + i * line_step;
  }
  __device__ Level level(int64_t k) const {
    const auto [tap, channel] = channels.split(k);
    return channel * channel_step + tap;
  }
  __device__ Value at(Line line, Level level) const { return widen(line[level]); }
  __device__ bool along_depth() const { return channel_step <= line_step; }
};

/// Stores images[pixel][channel of the group] = sum + bias[channel].
template <class C> struct StorePixels {
  Operand images, bias;
  int64_t channels, group_channels;
  __device__ void operator()(int64_t group, int64_t pixel, int64_t i, C sum) const {
    const int64_t channel = group * group_channels + i;
    if (bias.data) sum += load_floating<C>(bias, channel);
    store_floating(images, pixel * channels + channel, sum);
  }
};

// Products for grouped convolutions whose groups are too narrow for tiles (one channel in depthwise
// convolutions). Factors and stores are as in tiles.h, but each thread computes its own place,
// and neighboring threads have neighboring channels, of any group.

/// Returns whether `columns` per group fill so little of a tile that one thread per place is
/// faster.
inline bool is_narrow(const ConvSizes& s, int columns) {
  return s.groups > 1 && columns < tile_edge / 4;
}

/// Rows are pixels: few levels, many places.
template <class A, class B, class Store>
__global__ void narrow_kernel(A a, B b, Store store, ProductSizes sizes, Divisor all_columns,
                              Divisor group_columns) {
  using C = typename A::Value;
  const int64_t count = sizes.elements();
  for (int64_t place = global_thread(); place < count; place += all_threads()) {
    const auto [row, channel] = all_columns.split(place);
    const auto [batch, column] = group_columns.split(channel);
    const typename A::Line left = a.line(batch, row);
    const typename B::Line right = b.line(batch, column);
    C sum = 0;
    for (int64_t k = 0; k < sizes.depth; ++k)
      sum += a.at(left, a.level(k)) * b.at(right, b.level(k));
    store(batch, row, column, sum);
  }
}

template <class A, class B, class Store>
void narrow_product(const Context& context, const A& a, const B& b, const Store& store,
                    const ProductSizes& sizes) {
  if (sizes.elements() == 0) return;
  launch(context, narrow_kernel<A, B, Store>, shape_for(context, sizes.elements()), a, b, store,
         sizes, Divisor(sizes.batches * sizes.columns), Divisor(sizes.columns));
}

/// The depth is pixels: many levels, few places. A lane has one row of all batches. The warps of
/// the block share the levels of a split, which goes to `partial` as in tiles.h.
template <class A, class B>
__global__ void __launch_bounds__(product_threads)
    narrow_deep_kernel(A a, B b, Tiling tiling, typename A::Value* partial) {
  using C = typename A::Value;
  constexpr int warps = product_threads / warp_lanes;
  __shared__ C of_warps[warps][warp_lanes];
  const ProductSizes& sizes = tiling.sizes;
  const int64_t all_rows = sizes.batches * sizes.rows, tiles = tiling.row_tiles * sizes.columns;
  const int lane = int(threadIdx.x) % warp_lanes, warp = int(threadIdx.x) / warp_lanes;
  for (int64_t work = blockIdx.x; work < tiles * tiling.splits; work += gridDim.x) {
    const int64_t split = work / tiles, column = work % tiles % sizes.columns;
    const int64_t row = work % tiles / sizes.columns * warp_lanes + lane;
    const int64_t first = split * tiling.split_depth, end = first + tiling.split_depth;
    C sum = 0;
    if (row < all_rows) {
      const typename A::Line left = a.line(row / sizes.rows, row % sizes.rows);
      const typename B::Line right = b.line(row / sizes.rows, column);
      for (int64_t k = first + warp; k < (end < sizes.depth ? end : sizes.depth); k += warps)
        sum += a.at(left, a.level(k)) * b.at(right, b.level(k));
    }
    of_warps[warp][lane] = sum;
    __syncthreads();
    if (warp == 0 && row < all_rows) {
      for (int other = 1; other < warps; ++other) sum += of_warps[other][lane];
      partial[(split * all_rows + row) * sizes.columns + column] = sum;
    }
    __syncthreads();
  }
}

template <class A, class B, class Store>
void narrow_deep_product(const Context& context, const A& a, const B& b, const Store& store,
                         const ProductSizes& sizes) {
  using C = typename A::Value;
  if (sizes.elements() == 0) return;
  constexpr int64_t least_depth = 1024;
  Tiling tiling{.sizes = sizes, .row_tiles = blocks_for(sizes.batches * sizes.rows, warp_lanes)};
  const int64_t wanted =
      int64_t(context.multiprocessors()) * 8 / (tiling.row_tiles * sizes.columns);
  const int64_t splits = std::clamp<int64_t>(wanted, 1, sizes.depth / least_depth + 1);
  tiling.split_depth = std::max<int64_t>((sizes.depth + splits - 1) / splits, 1);
  tiling.splits = blocks_for(sizes.depth, tiling.split_depth);
  const Tensor partial = scratch(context, {tiling.splits, sizes.elements()}, dtype_of<C>);
  launch(context, narrow_deep_kernel<A, B>,
         {blocks_for(tiling.row_tiles * sizes.columns * tiling.splits, 1), product_threads}, a, b,
         tiling, partial.data<C>());
  launch(context, add_splits_kernel<C, Store>, shape_for(context, sizes.elements()),
         partial.data<C>(), tiling, store);
}

}  // namespace halftone::cuda
