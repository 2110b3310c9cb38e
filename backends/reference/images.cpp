// Convolution, pooling and resizing.
#include <limits>

#include <halftone/backends/image_axis.h>
#include <halftone/backends/reference/loops.h>
#include <halftone/backends/reference/reference.h>
#include <halftone/backends/reference/rows.h>
#include <halftone/core/tensor.h>

namespace halftone {

// Convolution of NHWC images, image by image: widen to double, loop, round. Each task computes a
// row of the output image (or the gradient of one output channel's weights), and the innermost loop
// runs along contiguous channels.
// Equivalent to, for each output channel oc of group g:
//   y[oy][ox][oc] = bias[oc] + sum over ky, kx, ic of w[oc][ic][ky][kx] *
//                   x[oy stride - padding + ky dilation][ox ...][g in_per_group + ic]

using namespace reference;

namespace {

/// Sizes along one image axis, and which input and output positions each tap of the kernel
/// connects.
struct ConvAxis {
  int64_t in, out, kernel, stride, padding, dilation;

  /// Returns the input position that output `o` reads through a tap, or -1 in the padding.
  int64_t input_of(int64_t o, int64_t tap) const {
    const int64_t i = o * stride - padding + tap * dilation;
    return i < in ? std::max<int64_t>(i, -1) : -1;
  }
  /// Returns the output position that reads input `i` through a tap, or -1.
  int64_t output_of(int64_t i, int64_t tap) const {
    const int64_t o = i + padding - tap * dilation;
    return o >= 0 && o % stride == 0 && o / stride < out ? o / stride : -1;
  }
};

struct ConvSizes {
  int64_t images, groups, in, out;  // channels per group
  ConvAxis rows, columns;

  ConvSizes(const Tensor& x, const Tensor& w, const ConvGeometry& g, const Tensor& y)
      : images(x.size(0)),
        groups(g.groups),
        in(w.size(1)),
        out(w.size(0) / g.groups),
        rows{x.size(2), y.size(2), w.size(2), g.stride[0], g.padding[0], g.dilation[0]},
        columns{x.size(3), y.size(3), w.size(3), g.stride[1], g.padding[1], g.dilation[1]} {}

  int64_t in_channels() const { return groups * in; }
  int64_t out_channels() const { return groups * out; }
  int64_t in_image() const { return rows.in * columns.in * in_channels(); }
  int64_t out_image() const { return rows.out * columns.out * out_channels(); }
  int64_t taps() const { return rows.kernel * columns.kernel; }
  int64_t weights() const { return out_channels() * in * taps(); }
  /// Returns the offset of the matrix [in, out] (or [out, in]) of one tap and group.
  int64_t matrix(int64_t group, int64_t ky, int64_t kx) const {
    return ((group * rows.kernel + ky) * columns.kernel + kx) * in * out;
  }
};

/// Writes w [out, in / groups, kh, kw] as double matrices per group and tap: [in, out], or [out,
/// in] if `transposed`.
void arrange_weights(const Tensor& w_in, const ConvSizes& s, bool transposed, double* arranged) {
  const Tensor w = views::contiguous(w_in);
  parallel_tasks(s.out_channels(), [&](int64_t channel) {
    const int64_t group = channel / s.out, oc = channel % s.out;
    for (int64_t ic = 0; ic < s.in; ++ic)
      for (int64_t ky = 0; ky < s.rows.kernel; ++ky)
        for (int64_t kx = 0; kx < s.columns.kernel; ++kx) {
          const int64_t tap = ky * s.columns.kernel + kx;
          const int64_t place = transposed ? oc * s.in + ic : ic * s.out + oc;
          arranged[s.matrix(group, ky, kx) + place] =
              load_one(w, (channel * s.in + ic) * s.taps() + tap);
        }
  });
}

/// Computes one pixel of the output: y [out channels] += the products of the window around it.
void gather_window(const ConvSizes& s, const double* x, const double* w, int64_t oy, int64_t ox,
                   double* y) {
  for (int64_t ky = 0; ky < s.rows.kernel; ++ky) {
    const int64_t iy = s.rows.input_of(oy, ky);
    if (iy < 0) continue;
    for (int64_t kx = 0; kx < s.columns.kernel; ++kx) {
      const int64_t ix = s.columns.input_of(ox, kx);
      if (ix < 0) continue;
      const double* const pixel = x + (iy * s.columns.in + ix) * s.in_channels();
      for (int64_t group = 0; group < s.groups; ++group)
        add_product(s.in, s.out, pixel + group * s.in, 1, w + s.matrix(group, ky, kx), s.out,
                    y + group * s.out);
    }
  }
}

/// Computes one pixel of the input's gradient: dx [in channels] += the gradients from the windows
/// that read it.
void gather_gradient(const ConvSizes& s, const double* dy, const double* w, int64_t iy, int64_t ix,
                     double* dx) {
  for (int64_t ky = 0; ky < s.rows.kernel; ++ky) {
    const int64_t oy = s.rows.output_of(iy, ky);
    if (oy < 0) continue;
    for (int64_t kx = 0; kx < s.columns.kernel; ++kx) {
      const int64_t ox = s.columns.output_of(ix, kx);
      if (ox < 0) continue;
      const double* const pixel = dy + (oy * s.columns.out + ox) * s.out_channels();
      for (int64_t group = 0; group < s.groups; ++group)
        add_product(s.out, s.in, pixel + group * s.out, 1, w + s.matrix(group, ky, kx), s.in,
                    dx + group * s.in);
    }
  }
}

}  // namespace

void ReferenceBackend::conv(const Tensor& x, const Tensor& w, const Tensor& bias,
                            const ConvGeometry& g, Tensor& y) {
  if (y.numel() == 0) return;
  const ConvSizes s(x, w, g, y);
  Workspace<double> weights(s.weights()), start(s.out_channels());
  Workspace<double> in(s.in_image()), out(s.out_image());
  arrange_weights(w, s, false, weights.data());
  load(bias, 0, s.out_channels(), start.data());
  for (int64_t image = 0; image < s.images; ++image) {
    widen(x, image * s.in_image(), s.in_image(), in.data());
    parallel_tasks(s.rows.out, [&](int64_t oy) {
      for (int64_t ox = 0; ox < s.columns.out; ++ox) {
        double* const pixel = out.data() + (oy * s.columns.out + ox) * s.out_channels();
        std::copy_n(start.data(), s.out_channels(), pixel);
        gather_window(s, in.data(), weights.data(), oy, ox, pixel);
      }
    });
    narrow(out.data(), s.out_image(), y, image * s.out_image());
  }
}

void ReferenceBackend::conv_backward_data(const Tensor& dy, const Tensor& w, const ConvGeometry& g,
                                          Tensor& dx) {
  if (dx.numel() == 0) return;
  const ConvSizes s(dx, w, g, dy);
  Workspace<double> weights(s.weights()), in(s.in_image()), out(s.out_image());
  arrange_weights(w, s, true, weights.data());
  for (int64_t image = 0; image < s.images; ++image) {
    widen(dy, image * s.out_image(), s.out_image(), out.data());
    parallel_tasks(s.rows.in, [&](int64_t iy) {
      for (int64_t ix = 0; ix < s.columns.in; ++ix) {
        double* const pixel = in.data() + (iy * s.columns.in + ix) * s.in_channels();
        std::fill_n(pixel, s.in_channels(), 0.0);
        gather_gradient(s, out.data(), weights.data(), iy, ix, pixel);
      }
    });
    narrow(in.data(), s.in_image(), dx, image * s.in_image());
  }
}

namespace {

/// The output columns that read the image, not the padding, through a tap.
struct ColumnRange {
  int64_t begin, end;
};
ColumnRange columns_inside(const ConvAxis& axis, int64_t kx) {
  ColumnRange range{0, axis.out};
  while (range.begin < range.end && axis.input_of(range.begin, kx) < 0) ++range.begin;
  while (range.begin < range.end && axis.input_of(range.end - 1, kx) < 0) --range.end;
  return range;
}

/// Adds one image's part of the gradient of one output channel's weights, dw [kh, kw, in]; `row`
/// has the same size. Each row of pixels is summed separately before it joins the total.
void add_weight_gradient(const ConvSizes& s, const double* x, const double* dy, int64_t channel,
                         double* row, double* dw) {
  const int64_t group = channel / s.out, weights = s.in * s.taps();
  for (int64_t oy = 0; oy < s.rows.out; ++oy) {
    std::fill_n(row, weights, 0.0);
    for (int64_t ky = 0; ky < s.rows.kernel; ++ky) {
      const int64_t iy = s.rows.input_of(oy, ky);
      if (iy < 0) continue;
      for (int64_t kx = 0; kx < s.columns.kernel; ++kx) {
        const auto [begin, end] = columns_inside(s.columns, kx);
        if (begin == end) continue;
        const int64_t ix = s.columns.input_of(begin, kx);
        const int64_t from = (iy * s.columns.in + ix) * s.in_channels() + group * s.in;
        const int64_t to = (oy * s.columns.out + begin) * s.out_channels() + channel;
        add_product(end - begin, s.in, dy + to, s.out_channels(), x + from,
                    s.columns.stride * s.in_channels(), row + (ky * s.columns.kernel + kx) * s.in);
      }
    }
    for (int64_t i = 0; i < weights; ++i) dw[i] += row[i];
  }
}

}  // namespace

void ReferenceBackend::conv_backward_weights(const Tensor& x, const Tensor& dy,
                                             const ConvGeometry& g, Tensor& dw, Tensor& dbias) {
  const ConvSizes s(x, dw, g, dy);
  const int64_t channel_weights = s.in * s.taps();
  Workspace<double> in(s.in_image()), out(s.out_image()), sums(s.weights()), rows(s.weights());
  std::fill_n(sums.data(), sums.size(), 0.0);  // [out, kh, kw, in / groups]
  for (int64_t image = 0; image < s.images; ++image) {
    widen(x, image * s.in_image(), s.in_image(), in.data());
    widen(dy, image * s.out_image(), s.out_image(), out.data());
    parallel_tasks(s.out_channels(), [&](int64_t channel) {
      add_weight_gradient(s, in.data(), out.data(), channel,
                          rows.data() + channel * channel_weights,
                          sums.data() + channel * channel_weights);
    });
  }
  for (int64_t channel = 0; channel < s.out_channels(); ++channel)
    for (int64_t ic = 0; ic < s.in; ++ic)
      for (int64_t tap = 0; tap < s.taps(); ++tap)
        store_one(sums[channel * channel_weights + tap * s.in + ic], dw,
                  channel * channel_weights + ic * s.taps() + tap);
  if (!dbias.defined()) return;
  Workspace<double> totals(s.out_channels());
  sum_over_rows(pixels_of(dy), 1, totals.data(),
                [&](int64_t row, int64_t column, int64_t count, double* partial) {
                  double values[block_length];
                  load(dy, row * s.out_channels() + column, count, values);
                  for (int64_t i = 0; i < count; ++i) partial[i] += values[i];
                });
  store(totals.data(), s.out_channels(), dbias, 0);
}

// Pooling of NHWC images. A pooling is described by its windows along each axis, so average pooling
// and adaptive average pooling share their loops. Backward gathers: each input pixel adds up, in
// double, the gradients of the windows that contain it, so two threads never write to one place.

using namespace reference;

namespace {

/// Both axes and the channels; x is the input's shape and y the output's.
struct PoolSizes {
  int64_t images, channels;
  PoolAxis rows, columns;

  PoolSizes(const Tensor& x, const Tensor& y, const PoolGeometry& g)
      : images(x.size(0)),
        channels(x.size(1)),
        rows(sliding_axis(x.size(2), y.size(2), g, 0)),
        columns(sliding_axis(x.size(3), y.size(3), g, 1)) {}
  PoolSizes(const Tensor& x, const Tensor& y)
      : images(x.size(0)),
        channels(x.size(1)),
        rows(adaptive_axis(x.size(2), y.size(2))),
        columns(adaptive_axis(x.size(3), y.size(3))) {}

  int64_t in_offset(int64_t image, int64_t iy, int64_t ix) const {
    return ((image * rows.in + iy) * columns.in + ix) * channels;
  }
  int64_t out_offset(int64_t image, int64_t oy, int64_t ox) const {
    return ((image * rows.out + oy) * columns.out + ox) * channels;
  }
  /// Calls body(image, oy, ox, channel, count) for blocks of channels of every output pixel.
  template <class Body> void each_output(const Body& body) const {
    each_pixel(rows.out, columns.out, body);
  }
  template <class Body> void each_input(const Body& body) const {
    each_pixel(rows.in, columns.in, body);
  }

 private:
  template <class Body> void each_pixel(int64_t height, int64_t width, const Body& body) const {
    parallel_tasks(images * height, [&](int64_t row) {
      for (int64_t x = 0; x < width; ++x)
        for (int64_t channel = 0; channel < channels; channel += block_length)
          body(row / height, row % height, x, channel, std::min(block_length, channels - channel));
    });
  }
};

/// Returns the position of an input in the window, counted with padding: row * kernel width +
/// column; -1 if dilation skips it.
int32_t place_in_window(const PoolGeometry& g, int64_t iy, int64_t ix, int64_t oy, int64_t ox) {
  const int64_t row = iy + g.padding[0] - oy * g.stride[0];
  const int64_t column = ix + g.padding[1] - ox * g.stride[1];
  if (row % g.dilation[0] != 0 || column % g.dilation[1] != 0) return -1;
  return int32_t(row / g.dilation[0] * g.kernel[1] + column / g.dilation[1]);
}

}  // namespace

void ReferenceBackend::max_pool(const Tensor& x, const PoolGeometry& g, Tensor& y, Tensor& argmax) {
  const PoolSizes s(x, y, g);
  s.each_output([&](int64_t image, int64_t oy, int64_t ox, int64_t channel, int64_t count) {
    double best[block_length], values[block_length];
    int32_t places[block_length];
    std::fill_n(best, count, -std::numeric_limits<double>::infinity());
    std::fill_n(places, count, -1);
    const Range rows = s.rows.window(oy), columns = s.columns.window(ox);
    for (int64_t iy = rows.begin; iy < rows.end; iy += s.rows.step)
      for (int64_t ix = columns.begin; ix < columns.end; ix += s.columns.step) {
        const int32_t place = place_in_window(g, iy, ix, oy, ox);
        load(x, s.in_offset(image, iy, ix) + channel, count, values);
        for (int64_t c = 0; c < count; ++c) {
          const bool first_nan = values[c] != values[c] && best[c] == best[c];
          if (values[c] > best[c] || first_nan || places[c] < 0)
            best[c] = values[c], places[c] = place;
        }
      }
    store(best, count, y, s.out_offset(image, oy, ox) + channel);
    for (int64_t c = 0; c < count; ++c)
      places[c] = std::max(places[c], 0);  // the window had only
                                           // padding
    if (argmax.defined())
      convert_run(count, run_of(places), run_of(argmax, s.out_offset(image, oy, ox) + channel));
  });
}

void ReferenceBackend::max_pool_backward(const Tensor& dy, const Tensor& argmax,
                                         const PoolGeometry& g, Tensor& dx) {
  const PoolSizes s(dx, dy, g);
  s.each_input([&](int64_t image, int64_t iy, int64_t ix, int64_t channel, int64_t count) {
    double sums[block_length] = {}, values[block_length];
    int32_t places[block_length];
    const Range rows = s.rows.reader(iy), columns = s.columns.reader(ix);
    for (int64_t oy = rows.begin; oy < rows.end; ++oy)
      for (int64_t ox = columns.begin; ox < columns.end; ++ox) {
        const int64_t window = s.out_offset(image, oy, ox) + channel;
        const int32_t place = place_in_window(g, iy, ix, oy, ox);
        convert_run(count, run_of(argmax, window), run_of(places));
        load(dy, window, count, values);
        for (int64_t c = 0; c < count; ++c) sums[c] += places[c] == place ? values[c] : 0.0;
      }
    store(sums, count, dx, s.in_offset(image, iy, ix) + channel);
  });
}

namespace {

/// Computes y = the sum of each window / divisor(oy, ox).
template <class Divisor>
void average(const PoolSizes& s, const Tensor& x, const Tensor& y, const Divisor& divisor) {
  s.each_output([&](int64_t image, int64_t oy, int64_t ox, int64_t channel, int64_t count) {
    double sums[block_length] = {}, values[block_length];
    const Range rows = s.rows.window(oy), columns = s.columns.window(ox);
    for (int64_t iy = rows.begin; iy < rows.end; ++iy)
      for (int64_t ix = columns.begin; ix < columns.end; ++ix) {
        load(x, s.in_offset(image, iy, ix) + channel, count, values);
        for (int64_t c = 0; c < count; ++c) sums[c] += values[c];
      }
    for (int64_t c = 0; c < count; ++c) sums[c] /= double(divisor(oy, ox));
    store(sums, count, y, s.out_offset(image, oy, ox) + channel);
  });
}

/// Computes dx = the sum of dy / divisor(oy, ox) over the windows that contain an input.
template <class Divisor>
void spread(const PoolSizes& s, const Tensor& dy, const Tensor& dx, const Divisor& divisor) {
  s.each_input([&](int64_t image, int64_t iy, int64_t ix, int64_t channel, int64_t count) {
    double sums[block_length] = {}, values[block_length];
    const Range rows = s.rows.reader(iy), columns = s.columns.reader(ix);
    for (int64_t oy = rows.begin; oy < rows.end; ++oy)
      for (int64_t ox = columns.begin; ox < columns.end; ++ox) {
        load(dy, s.out_offset(image, oy, ox) + channel, count, values);
        for (int64_t c = 0; c < count; ++c) sums[c] += values[c] / double(divisor(oy, ox));
      }
    store(sums, count, dx, s.in_offset(image, iy, ix) + channel);
  });
}

/// Returns the number of positions that an average divides by: those inside the image, or the whole
/// window.
auto divisor_of(const PoolSizes& s, bool whole_window, const PoolGeometry& g = {}) {
  return [&s, whole_window, g](int64_t oy, int64_t ox) {
    return whole_window ? g.kernel[0] * g.kernel[1]
                        : s.rows.window(oy).length() * s.columns.window(ox).length();
  };
}

}  // namespace

void ReferenceBackend::avg_pool(const Tensor& x, const PoolGeometry& g, Tensor& y) {
  const PoolSizes s(x, y, g);
  average(s, x, y, divisor_of(s, g.count_padding, g));
}
void ReferenceBackend::avg_pool_backward(const Tensor& dy, const PoolGeometry& g, Tensor& dx) {
  const PoolSizes s(dx, dy, g);
  spread(s, dy, dx, divisor_of(s, g.count_padding, g));
}
void ReferenceBackend::adaptive_avg_pool(const Tensor& x, Tensor& y) {
  const PoolSizes s(x, y);
  average(s, x, y, divisor_of(s, false));
}
void ReferenceBackend::adaptive_avg_pool_backward(const Tensor& dy, Tensor& dx) {
  const PoolSizes s(dx, dy);
  spread(s, dy, dx, divisor_of(s, false));
}

// Resizing of NHWC images: each output pixel is a mean of four input pixels (one for `nearest`),
// with a weight along each axis. Backward gathers: each input pixel adds up the gradients of the
// outputs that read it, so two threads never write to one place.

using namespace reference;

namespace {

/// Calls body(image, row, column, channel, count) for blocks of channels of every pixel.
template <class Body> void each_pixel(const Tensor& images, const Body& body) {
  const int64_t channels = images.size(1), height = images.size(2), width = images.size(3);
  parallel_tasks(images.size(0) * height, [&](int64_t row) {
    for (int64_t x = 0; x < width; ++x)
      for (int64_t channel = 0; channel < channels; channel += block_length)
        body(row / height, row % height, x, channel, std::min(block_length, channels - channel));
  });
}

int64_t offset_of(const Tensor& images, int64_t image, int64_t row, int64_t column) {
  return ((image * images.size(2) + row) * images.size(3) + column) * images.size(1);
}

/// Computes sums += weight x.
void add_pixel(const Tensor& x, int64_t offset, double weight, int64_t count, double* sums) {
  if (weight == 0) return;
  double values[block_length];
  load(x, offset, count, values);
  for (int64_t c = 0; c < count; ++c) sums[c] += weight * values[c];
}

}  // namespace

void ReferenceBackend::interpolate(const Tensor& x, const InterpolationGeometry& g, Tensor& y) {
  const ResizeAxis rows(x.size(2), y.size(2), g, 0), columns(x.size(3), y.size(3), g, 1);
  each_pixel(y, [&](int64_t image, int64_t oy, int64_t ox, int64_t channel, int64_t count) {
    double sums[block_length] = {};
    const Tap &row = rows.tap(oy), &column = columns.tap(ox);
    const auto add = [&](int64_t iy, int64_t ix, double weight) {
      add_pixel(x, offset_of(x, image, iy, ix) + channel, weight, count, sums);
    };
    add(row.first, column.first, (1 - row.weight) * (1 - column.weight));
    add(row.first, column.second, (1 - row.weight) * column.weight);
    add(row.second, column.first, row.weight * (1 - column.weight));
    add(row.second, column.second, row.weight * column.weight);
    store(sums, count, y, offset_of(y, image, oy, ox) + channel);
  });
}

void ReferenceBackend::interpolate_backward(const Tensor& dy, const InterpolationGeometry& g,
                                            Tensor& dx) {
  const ResizeAxis rows(dx.size(2), dy.size(2), g, 0), columns(dx.size(3), dy.size(3), g, 1);
  each_pixel(dx, [&](int64_t image, int64_t iy, int64_t ix, int64_t channel, int64_t count) {
    double sums[block_length] = {};
    const Range reading_rows = rows.reader(iy), reading_columns = columns.reader(ix);
    for (int64_t oy = reading_rows.begin; oy < reading_rows.end; ++oy)
      for (int64_t ox = reading_columns.begin; ox < reading_columns.end; ++ox)
        add_pixel(dy, offset_of(dy, image, oy, ox) + channel,
                  rows.tap(oy).of(iy) * columns.tap(ox).of(ix), count, sums);
    store(sums, count, dx, offset_of(dx, image, iy, ix) + channel);
  });
}

}  // namespace halftone
