// Group norm over contiguous [n, c, spatial]: each group of channels of each image is contiguous in
// memory and is normalized by its own moments; weight and bias belong to channels (Wu & He 2018).
#include <halftone/backends/reference/reference.h>

#include <halftone/backends/reference/norm.h>

namespace halftone {

using namespace reference;

namespace {

struct GroupSizes {
  int64_t images, channels, spatial, groups;

  GroupSizes(const Tensor& x, const Tensor& rstd)
      : images(x.size(0)), channels(x.size(1)), spatial(x.size(2)), groups(rstd.size(1)) {}
  int64_t per_group() const { return channels / groups; }
  int64_t group_length() const { return per_group() * spatial; }
  /// Calls body(channel, begin, count) for blocks of one image's group, each within one channel.
  template <class Body> void each_block_of(int64_t image_group, const Body& body) const {
    const int64_t first_channel = image_group % groups * per_group();
    for (int64_t c = 0; c < per_group(); ++c)
      each_block(spatial, [&](int64_t first, int64_t count) {
        body(first_channel + c, (image_group * per_group() + c) * spatial + first, count);
      });
  }
};

double channel_value(const Tensor& x, int64_t channel, double otherwise) {
  return x.defined() ? load_one(x, channel) : otherwise;
}

}  // namespace

void ReferenceBackend::group_norm(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                  double eps, Tensor& y, Tensor& mean, Tensor& rstd) {
  const GroupSizes s(x, rstd);
  each_row(s.images * s.groups, s.group_length(), [&](int64_t group) {
    const Moments moments = moments_of(x, group * s.group_length(), s.group_length(), true);
    const double scale = 1 / std::sqrt(moments.variance + eps);
    store_one(moments.mean, mean, group);
    store_one(scale, rstd, group);
    s.each_block_of(group, [&](int64_t channel, int64_t begin, int64_t count) {
      const double w = channel_value(weight, channel, 1), b = channel_value(bias, channel, 0);
      double values[block_length];
      load(x, begin, count, values);
      for (int64_t i = 0; i < count; ++i) values[i] = (values[i] - moments.mean) * scale * w + b;
      store(values, count, y, begin);
    });
  });
}

namespace {

struct GroupNormGradient {
  const Tensor &x, &weight, &mean, &rstd, &dy;
  GroupSizes s;

  void load_block(int64_t group, int64_t begin, int64_t count, double* d, double* x_hat) const {
    const double center = load_one(mean, group), scale = load_one(rstd, group);
    load(x, begin, count, x_hat);
    load(dy, begin, count, d);
    for (int64_t i = 0; i < count; ++i) x_hat[i] = (x_hat[i] - center) * scale;
  }

  void write_dx(int64_t group, const Tensor& dx) const {
    double d[block_length], x_hat[block_length];
    GradientMeans means;
    const auto n = double(s.group_length());
    s.each_block_of(group, [&](int64_t channel, int64_t begin, int64_t count) {
      const double w = channel_value(weight, channel, 1);
      load_block(group, begin, count, d, x_hat);
      means.g += w / n * sum_of(count, [&](int64_t i) { return d[i]; });
      means.g_x_hat += w / n * sum_of(count, [&](int64_t i) { return d[i] * x_hat[i]; });
    });
    const double scale = load_one(rstd, group);
    s.each_block_of(group, [&](int64_t channel, int64_t begin, int64_t count) {
      const double w = channel_value(weight, channel, 1);
      load_block(group, begin, count, d, x_hat);
      for (int64_t i = 0; i < count; ++i)
        d[i] = scale * (w * d[i] - means.g - x_hat[i] * means.g_x_hat);
      store(d, count, dx, begin);
    });
  }

  /// Writes the gradients of one channel, summed over images and positions.
  void write_weight_gradients(int64_t channel, const Tensor& dweight, const Tensor& dbias) const {
    double d[block_length], x_hat[block_length];
    CompensatedSum sum, sum_x_hat;
    for (int64_t image = 0; image < s.images; ++image)
      each_block(s.spatial, [&](int64_t first, int64_t count) {
        const int64_t begin = (image * s.channels + channel) * s.spatial + first;
        load_block(image * s.groups + channel / s.per_group(), begin, count, d, x_hat);
        for (int64_t i = 0; i < count; ++i) sum.add(d[i]), sum_x_hat.add(d[i] * x_hat[i]);
      });
    if (dweight.defined()) store_one(sum_x_hat.value(), dweight, channel);
    if (dbias.defined()) store_one(sum.value(), dbias, channel);
  }
};

}  // namespace

void ReferenceBackend::group_norm_backward(const Tensor& x, const Tensor& weight,
                                           const Tensor& mean, const Tensor& rstd, const Tensor& dy,
                                           Tensor& dx, Tensor& dweight, Tensor& dbias) {
  const GroupNormGradient gradient{x, weight, mean, rstd, dy, GroupSizes(x, rstd)};
  const GroupSizes& s = gradient.s;
  if (dx.defined())
    each_row(s.images * s.groups, s.group_length(),
             [&](int64_t group) { gradient.write_dx(group, dx); });
  if (!dweight.defined() && !dbias.defined()) return;
  parallel_tasks(s.channels, [&](int64_t channel) {
    gradient.write_weight_gradients(channel, dweight, dbias);
  });
}

}  // namespace halftone
