// Convolution of NHWC images, image by image: widen to double, loop, round. Each task computes a
// row of the output image (or the gradient of one output channel's weights), and the innermost loop
// runs along contiguous channels.
// Equivalent to, for each output channel oc of group g:
//   y[oy][ox][oc] = bias[oc] + sum over ky, kx, ic of w[oc][ic][ky][kx] *
//                   x[oy stride - padding + ky dilation][ox ...][g in_per_group + ic]
#include <halftone/backends/reference/product.h>
#include <halftone/backends/reference/reference.h>
#include <halftone/backends/reference/rows.h>
#include <halftone/core/tensor.h>

namespace halftone {

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

}  // namespace halftone
