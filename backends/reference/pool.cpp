// Pooling of NHWC images. A pooling is described by its windows along each axis, so average pooling
// and adaptive average pooling share their loops. Backward gathers: each input pixel adds up, in
// double, the gradients of the windows that contain it, so two threads never write to one place.
#include <halftone/backends/reference/reference.h>

#include <limits>

#include <halftone/backends/reference/pool_axis.h>
#include <halftone/backends/reference/runs.h>

namespace halftone {

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

}  // namespace halftone
