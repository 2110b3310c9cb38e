// Samples of convolutions and pooling: their oracles are the seven nested loops of the definition.
#pragma once

#include <algorithm>

#include "ops/samples_case.h"
#include "ops/samples_reduce.h"

namespace halftone::test {

/// Calls body(iy, ix, ky, kx) for the positions of a window that are inside an image of h x w.
template <class Body>
void each_place(const Conv2dOptions& o, int64_t oy, int64_t ox, int64_t kh, int64_t kw, int64_t h,
                int64_t w, const Body& body) {
  for (int64_t ky = 0; ky < kh; ++ky)
    for (int64_t kx = 0; kx < kw; ++kx) {
      const int64_t iy = oy * o.stride.height - o.padding.height + ky * o.dilation.height;
      const int64_t ix = ox * o.stride.width - o.padding.width + kx * o.dilation.width;
      if (iy >= 0 && iy < h && ix >= 0 && ix < w) body(iy, ix, ky, kx);
    }
}
inline int64_t conv_size(int64_t in, int64_t k, int64_t stride, int64_t padding, int64_t dilation) {
  return (in + 2 * padding - dilation * (k - 1) - 1) / stride + 1;
}

template <> struct Samples<Conv2d> {
  static Array oracle(const Array& x, const Array& w, const Array& bias, const Conv2dOptions& o) {
    const int64_t per_group = w.size(1), out_per_group = w.size(0) / o.groups;
    const Shape shape{
        x.size(0), w.size(0),
        conv_size(x.size(2), w.size(2), o.stride.height, o.padding.height, o.dilation.height),
        conv_size(x.size(3), w.size(3), o.stride.width, o.padding.width, o.dilation.width)};
    return array_of(shape, [&](const Dims& i) {
      double sum = bias.values.empty() ? 0 : bias(i[1]);
      const int64_t first = i[1] / out_per_group * per_group;
      each_place(o, i[2], i[3], w.size(2), w.size(3), x.size(2), x.size(3),
                 [&](int64_t iy, int64_t ix, int64_t ky, int64_t kx) {
                   for (int64_t c = 0; c < per_group; ++c)
                     sum += x(i[0], first + c, iy, ix) * w(i[1], c, ky, kx);
                 });
      return sum;
    });
  }
  static Case of(std::string name, const Shape& x, const Shape& w, bool bias,
                 const Conv2dOptions& o = {}) {
    return {.name = std::move(name),
            .inputs = {{.shape = x}, {.shape = w}, bias ? Input{.shape = {w[0]}} : absent()},
            .call = [o](const Tensors& in) { return conv2d(in[0], in[1], in[2], o); },
            .oracle = [o](const Arrays& in) { return oracle(in[0], in[1], in[2], o); },
            .reduced = w[1] * w[2] * w[3]};
  }
  static Case line(std::string name, const Shape& x, const Shape& w, const Conv1dOptions& o) {
    return {.name = std::move(name),
            .inputs = {{.shape = x}, {.shape = w}, {.shape = {w[0]}}},
            .call = [o](const Tensors& in) { return conv1d(in[0], in[1], in[2], o); },
            .oracle =
                [=](const Arrays& in) {
                  const Array flat =
                      oracle(Array({x[0], x[1], 1, x[2]}, in[0].values),
                             Array({w[0], w[1], 1, w[2]}, in[1].values), in[2],
                             {{1, o.stride}, {0, o.padding.width}, {1, o.dilation}, o.groups});
                  return Array({flat.size(0), flat.size(1), flat.size(3)}, flat.values);
                },
            .reduced = w[1] * w[2]};
  }
  static OpSamples make() {
    return {
        .cases = {of("plain", {2, 3, 5, 6}, {4, 3, 3, 3}, true),
                  of("no bias", {2, 3, 5, 5}, {4, 3, 3, 3}, false),
                  of("padded", {1, 2, 4, 4}, {3, 2, 3, 3}, true, {.padding = 1}),
                  of("strided", {2, 3, 7, 7}, {4, 3, 3, 3}, true, {.stride = 2, .padding = 1}),
                  of("strided, a rest after the last window", {1, 2, 8, 7}, {2, 2, 3, 2}, true,
                     {.stride = {3, 2}}),
                  of("dilated", {1, 2, 7, 8}, {3, 2, 3, 2}, true,
                     {.padding = {2, 1}, .dilation = {2, 3}}),
                  of("groups", {2, 4, 5, 5}, {6, 2, 3, 3}, true, {.padding = 1, .groups = 2}),
                  of("depthwise", {2, 6, 5, 5}, {6, 1, 3, 3}, true, {.padding = 1, .groups = 6}),
                  of("depthwise with a multiplier", {1, 3, 4, 5}, {6, 1, 3, 3}, false,
                     {.groups = 3}),
                  of("one by one", {2, 5, 3, 4}, {7, 5, 1, 1}, true),
                  of("one by one, strided", {1, 5, 5, 5}, {3, 5, 1, 1}, false, {.stride = 2}),
                  of("one input channel", {2, 1, 7, 9}, {5, 1, 5, 5}, true, {.padding = 2}),
                  of("one output", {2, 3, 4, 4}, {1, 3, 4, 4}, true),
                  of("not square", {1, 2, 3, 9}, {2, 2, 1, 5}, true, {.padding = {0, 2}}),
                  of("wide channels", {1, 33, 4, 4}, {35, 33, 3, 3}, true, {.padding = 1}),
                  of("no images", {0, 3, 5, 5}, {4, 3, 3, 3}, true),
                  line("conv1d", {2, 3, 9}, {4, 3, 3}, {.stride = 2, .padding = 1}),
                  line("conv1d, groups, dilated", {2, 4, 9}, {4, 2, 3},
                       {.dilation = 2, .groups = 2})},
        .errors =
            {REFUSES(
                 ShapeError,
                 "[conv2d] channels do not fit: x is [1, 3, 5, 5] f32, weight is [4, 2, 3, 3] f32, "
                 "groups 1; x.size(1) must equal weight.size(1) * groups and groups divide "
                 "weight.size(0).",
                 conv2d(ones({1, 3, 5, 5}), ones({4, 2, 3, 3}))),
             REFUSES(ShapeError, "[conv2d] x is [5, 5] f32, of rank 2. It must have rank 4.",
                     conv2d(ones({5, 5}), ones({4, 3, 3, 3}))),
             REFUSES(ShapeError,
                     "[conv2d] the output would be [1, 4, 0, 0] for x [1, 3, 2, 2] f32 and weight "
                     "[4, 3, 3, 3] f32. Use a smaller kernel or more padding.",
                     conv2d(ones({1, 3, 2, 2}), ones({4, 3, 3, 3}))),
             REFUSES(
                 UsageError,
                 "[conv2d] stride 0, padding 0, dilation 1, groups 1. Stride, dilation and groups "
                 "must be at least 1, padding at least 0.",
                 conv2d(ones({1, 3, 5, 5}), ones({4, 3, 3, 3}), {}, {.stride = 0})),
             REFUSES(ShapeError, "[conv2d] bias is [3] f32 for 4 channels. It must be [4].",
                     conv2d(ones({1, 3, 5, 5}), ones({4, 3, 3, 3}), ones({3}))),
             REFUSES(DTypeError, "[conv2d] dtypes differ: [1, 3, 5, 5] f32 and [4, 3, 3, 3] f16.",
                     conv2d(ones({1, 3, 5, 5}), ones({4, 3, 3, 3}, f16))),
             REFUSES(ShapeError, "[conv1d] x is [3, 5, 5, 5] f32, of rank 4. It must have rank 3.",
                     conv1d(ones({3, 5, 5, 5}), ones({4, 3, 3})))},
        .mixed = Mixed::refuses};
  }
};

template <> struct Samples<ConvTranspose2d> {
  static Case of(std::string name, const Shape& x, const Shape& w, bool bias,
                 const ConvTranspose2dOptions& o = {}) {
    const Conv2dOptions as_conv{o.stride, o.padding, o.dilation, o.groups};
    const auto size = [](int64_t in, int64_t k, int64_t s, int64_t p, int64_t d, int64_t extra) {
      return (in - 1) * s - 2 * p + d * (k - 1) + extra + 1;
    };
    const Shape result{x[0], w[1] * o.groups,
                       size(x[2], w[2], o.stride.height, o.padding.height, o.dilation.height,
                            o.output_padding.height),
                       size(x[3], w[3], o.stride.width, o.padding.width, o.dilation.width,
                            o.output_padding.width)};
    return {
        .name = std::move(name),
        .inputs = {{.shape = x}, {.shape = w}, bias ? Input{.shape = {w[1] * o.groups}} : absent()},
        .call = [o](const Tensors& in) { return conv_transpose2d(in[0], in[1], in[2], o); },
        .oracle =
            [=](const Arrays& in) {
              Array y = array_of(result, [&](const Dims& i) { return bias ? in[2](i[1]) : 0; });
              const int64_t in_per_group = x[1] / o.groups, out_per_group = w[1];
              // Each input adds its multiple of the kernel to a window of the output.
              each_index(x, [&](const Dims& i) {
                each_place(as_conv, i[2], i[3], w[2], w[3], result[2], result[3],
                           [&](int64_t oy, int64_t ox, int64_t ky, int64_t kx) {
                             for (int64_t c = 0; c < out_per_group; ++c)
                               y(i[0], i[1] / in_per_group * out_per_group + c, oy, ox) +=
                                   in[0][i] * in[1](i[1], c, ky, kx);
                           });
              });
              return y;
            },
        .reduced = x[1] / o.groups * w[2] * w[3],
        .roundings = bias ? 1 : 0};  // the bias is added to the rounded product
  }
  static OpSamples make() {
    return {
        .cases = {of("plain", {2, 3, 4, 3}, {3, 4, 3, 3}, true),
                  of("no bias", {1, 2, 3, 3}, {2, 3, 2, 2}, false),
                  of("strided", {1, 3, 3, 4}, {3, 2, 3, 3}, true, {.stride = 2}),
                  of("padded", {1, 2, 4, 4}, {2, 3, 3, 3}, true, {.stride = 2, .padding = 1}),
                  of("output padding", {2, 2, 3, 3}, {2, 3, 3, 3}, true,
                     {.stride = {2, 3}, .padding = 1, .output_padding = {1, 2}}),
                  of("groups", {1, 4, 3, 3}, {4, 3, 3, 3}, true,
                     {.stride = 2, .padding = 1, .groups = 2}),
                  of("depthwise", {1, 4, 3, 3}, {4, 1, 2, 2}, false, {.stride = 2, .groups = 4}),
                  of("dilated", {1, 2, 3, 4}, {2, 2, 2, 3}, true, {.dilation = 2}),
                  of("one by one", {2, 5, 3, 3}, {5, 4, 1, 1}, true)},
        .errors =
            {REFUSES(
                 ShapeError,
                 "[conv_transpose2d] channels do not fit: x is [1, 3, 5, 5] f32, weight is "
                 "[4, 2, 3, 3] f32, groups 1; x.size(1) must equal weight.size(0), a multiple of "
                 "groups.",
                 conv_transpose2d(ones({1, 3, 5, 5}), ones({4, 2, 3, 3}))),
             REFUSES(UsageError,
                     "[conv_transpose2d] output_padding 2 with stride 2. It must be smaller than "
                     "stride or dilation.",
                     conv_transpose2d(ones({1, 3, 5, 5}), ones({3, 2, 3, 3}), {},
                                      {.stride = 2, .output_padding = 2})),
             REFUSES(ShapeError,
                     "[conv_transpose2d] bias is [3] f32 for 2 channels. It must be [2].",
                     conv_transpose2d(ones({1, 3, 5, 5}), ones({3, 2, 3, 3}), ones({3}))),
             REFUSES(ShapeError, "[conv_transpose2d] the output would be [1, 2, -1, -1]",
                     conv_transpose2d(ones({1, 3, 1, 1}), ones({3, 2, 1, 1}), {}, {.padding = 1}))},
        .mixed = Mixed::refuses};
  }
};

/// The elements of each window in a pooling; `padding` counts the positions outside.
template <class Of>
Case pooling(std::string name, const Shape& x, const PoolOptions& o,
             std::function<Tensor(const Tensor&)> call, Of of, bool no_ties) {
  const Pair stride = o.stride.value_or(o.kernel);
  const Conv2dOptions window{stride, o.padding, o.dilation, 1};
  const auto size = [&](int64_t in, int64_t kernel, int64_t step, int64_t padding,
                        int64_t dilation) {
    int64_t windows = conv_size(in, kernel, step, padding, dilation);
    const int64_t next = windows * step - padding;  // start of the window that would come next
    const int64_t reach = (windows - 1) * step - padding + (kernel - 1) * dilation + 1;
    return windows + int64_t(o.ceil_mode && next < in && reach < in + padding);
  };
  const Shape result{
      x[0], x[1], size(x[2], o.kernel.height, stride.height, o.padding.height, o.dilation.height),
      size(x[3], o.kernel.width, stride.width, o.padding.width, o.dilation.width)};
  return {.name = std::move(name),
          .inputs = {{.shape = x, .distinct = no_ties}},
          .call = [call](const Tensors& in) { return call(in[0]); },
          .oracle =
              [=](const Arrays& in) {
                return array_of(result, [&](const Dims& i) {
                  Values inside;
                  each_place(window, i[2], i[3], o.kernel.height, o.kernel.width, x[2], x[3],
                             [&](int64_t iy, int64_t ix, int64_t, int64_t) {
                               inside.push_back(in[0](i[0], i[1], iy, ix));
                             });
                  return of(inside);
                });
              },
          .reduced = o.kernel.height * o.kernel.width};
}

inline std::vector<ErrorCase> pool_errors(const std::string& op,
                                          Tensor (*call)(const Tensor&, const PoolOptions&)) {
  const auto with = [call](const Shape& shape, PoolOptions o) {
    return [=] { call(ones(shape), o); };
  };
  return {
      error<ShapeError>("[" + op + "] x is [3, 4] f32, of rank 2. It must have rank 4.",
                        with({3, 4}, {})),
      error<ShapeError>(
          "[" + op +
              "] the output would be [1, 1, 0, 0] for x [1, 1, 2, 2] f32. Use a smaller kernel.",
          with({1, 1, 2, 2}, {.kernel = 3})),
      error<UsageError>(
          "[" + op +
              "] kernel 2, stride 2, padding 2, dilation 1. All but padding must be at least 1 and "
              "below 2^31, padding at most half the kernel.",
          with({1, 1, 4, 4}, {.kernel = 2, .padding = 2})),
      error<UsageError>("[" + op + "] kernel 2, stride 0, padding 0, dilation 1.",
                        with({1, 1, 4, 4}, {.stride = 0}))};
}

struct PoolSample {
  std::string name;
  Shape x;
  PoolOptions options{};
};
inline std::vector<PoolSample> pool_samples() {
  return {
      {"halves", {2, 3, 4, 6}},
      {"overlapping", {1, 2, 7, 7}, {.kernel = 3, .stride = 2}},
      {"padded", {1, 3, 5, 5}, {.kernel = 3, .stride = 2, .padding = 1}},
      {"not square", {2, 2, 5, 7}, {.kernel = {2, 3}, .stride = Pair{1, 2}, .padding = {1, 0}}},
      {"a rest after the last window", {1, 2, 5, 5}, {.kernel = 2}},
      {"every place", {1, 4, 4, 3}, {.kernel = 3, .stride = 1, .padding = 1}},
      {"one by one", {1, 2, 3, 3}, {.kernel = 1}},
      {"more than 256 places", {1, 1, 27, 9}, {.kernel = {26, 9}, .stride = 1, .padding = {0, 1}}},
      {"no images", {0, 2, 4, 4}}};
}

template <> struct Samples<MaxPool2d> {
  static OpSamples make() {
    std::vector<Case> cases;
    for (const auto& [name, shape, o] : pool_samples())
      cases.push_back(pooling(
          name, shape, o, [o = o](const Tensor& x) { return max_pool2d(x, o); }, largest, true));
    const std::vector<PoolSample> more = {
        {"dilated", {2, 3, 7, 6}, {.kernel = 2, .stride = 1, .dilation = 2}},
        {"dilated, padded",
         {1, 2, 6, 7},
         {.kernel = 3, .stride = 2, .padding = 1, .dilation = {2, 3}}},
        {"dilated, apart", {1, 3, 9, 8}, {.kernel = 2, .stride = 4, .dilation = 3}},
        {"a window for the rest", {1, 2, 5, 6}, {.kernel = 2, .stride = 2, .ceil_mode = true}},
        {"none that begins in the padding",
         {1, 3, 4, 5},
         {.kernel = 2, .stride = 2, .padding = 1, .ceil_mode = true}},
        {"dilated, for the rest",
         {2, 2, 8, 7},
         {.kernel = 2, .stride = 3, .padding = 1, .dilation = 2, .ceil_mode = true}}};
    for (const auto& [name, shape, o] : more)
      cases.push_back(pooling(
          name, shape, o, [o = o](const Tensor& x) { return max_pool2d(x, o); }, largest, true));
    return {.cases = cases, .errors = pool_errors("max_pool2d", &max_pool2d)};
  }
};

template <> struct Samples<AvgPool2d> {
  static OpSamples make() {
    std::vector<Case> cases;
    for (const PoolSample& sample : pool_samples())
      for (const bool count_padding : {true, false}) {
        PoolOptions o = sample.options;
        o.count_include_pad = count_padding;
        const double places = double(o.kernel.height * o.kernel.width);
        cases.push_back(pooling(
            sample.name + (count_padding ? "" : ", without padding"), sample.x, o,
            [o](const Tensor& x) { return avg_pool2d(x, o); },
            [=](const Values& v) { return total(v) / (count_padding ? places : double(v.size())); },
            false));
      }
    std::vector<ErrorCase> errors = pool_errors("avg_pool2d", &avg_pool2d);
    errors.push_back(REFUSES(UnsupportedError,
                             "[avg_pool2d] dilation is max_pool2d's. Leave it out.",
                             avg_pool2d(ones({1, 1, 4, 4}), {.kernel = 2, .dilation = 2})));
    return {.cases = cases, .errors = errors};
  }
};

template <> struct Samples<AdaptiveAvgPool2d> {
  static Case to(std::string name, const Shape& x, Pair output) {
    return {.name = std::move(name),
            .inputs = {{.shape = x}},
            .call = [output](const Tensors& in) { return adaptive_avg_pool2d(in[0], output); },
            .oracle =
                [=](const Arrays& in) {
                  return array_of({x[0], x[1], output.height, output.width}, [&](const Dims& i) {
                    Values inside;  // PyTorch's bins: from floor(o n / m) to ceil((o + 1) n / m)
                    for (int64_t y = i[2] * x[2] / output.height;
                         y * output.height < (i[2] + 1) * x[2]; ++y)
                      for (int64_t z = i[3] * x[3] / output.width;
                           z * output.width < (i[3] + 1) * x[3]; ++z)
                        inside.push_back(in[0](i[0], i[1], y, z));
                    return average(inside);
                  });
                },
            .reduced = x[2] * x[3]};
  }
  static OpSamples make() {
    return {
        .cases = {to("to one", {2, 3, 4, 5}, 1), to("bins that overlap", {1, 2, 5, 7}, {3, 4}),
                  to("halves", {2, 2, 4, 6}, {2, 3}), to("as it is", {1, 2, 3, 3}, 3),
                  to("larger", {1, 2, 2, 3}, {4, 5})},
        .errors = {REFUSES(ShapeError,
                           "[adaptive_avg_pool2d] output 0 x 1 of [1, 1, 4, 4] f32. Both must have "
                           "elements.",
                           adaptive_avg_pool2d(ones({1, 1, 4, 4}), {0, 1})),
                   REFUSES(ShapeError,
                           "[adaptive_avg_pool2d] x is [4, 4] f32, of rank 2. It must have rank 4.",
                           adaptive_avg_pool2d(ones({4, 4}), 1))}};
  }
};

// Samples of interpolation. The oracle is its definition as a sum over all pixels: the weight of a
// pixel is 1 minus its distance to the requested position, if that is positive.

template <> struct Samples<Interpolate> {
  /// The weight of input i in output o along one axis of `in` and `out` positions.
  static double weight(const InterpolateOptions& o, double factor, int64_t in, int64_t out,
                       int64_t to, int64_t from) {
    const double step = o.scale_factor ? 1 / factor : double(in) / double(out);
    if (o.mode == Interpolation::nearest)
      return from == std::min(int64_t(double(to) * step + 1e-9), in - 1) ? 1 : 0;
    double place = (double(to) + 0.5) * step - 0.5;
    if (o.align_corners) place = out > 1 ? double(to * (in - 1)) / double(out - 1) : 0;
    place = std::clamp(place, 0.0, double(in - 1));
    return std::max(0.0, 1 - std::abs(place - double(from)));
  }
  static Array oracle(const Array& x, const InterpolateOptions& o) {
    const Factors factors = o.scale_factor.value_or(1.0);
    const int64_t h = x.size(2), w = x.size(3);
    const Shape shape{x.size(0), x.size(1),
                      o.size ? o.size->height : int64_t(double(h) * factors.height),
                      o.size ? o.size->width : int64_t(double(w) * factors.width)};
    return array_of(shape, [&](const Dims& i) {
      double sum = 0;
      for (int64_t iy = 0; iy < h; ++iy)
        for (int64_t ix = 0; ix < w; ++ix)
          sum += weight(o, factors.height, h, shape[2], i[2], iy) *
                 weight(o, factors.width, w, shape[3], i[3], ix) * x(i[0], i[1], iy, ix);
      return sum;
    });
  }
  static Case of(std::string name, const Shape& x, const InterpolateOptions& o) {
    return {.name = std::move(name),
            .inputs = {{.shape = x}},
            .call = [o](const Tensors& in) { return interpolate(in[0], o); },
            .oracle = [o](const Arrays& in) { return oracle(in[0], o); },
            .reduced = 4};
  }
  static OpSamples make() {
    struct Size {
      std::string name;
      Shape x;
      InterpolateOptions options;
    };
    const std::vector<Size> sizes{{"doubled", {2, 3, 4, 5}, {.scale_factor = 2.0}},
                                  {"to a size", {1, 2, 3, 4}, {.size = Pair{5, 7}}},
                                  {"smaller", {1, 5, 9, 8}, {.size = Pair{4, 3}}},
                                  {"up and down", {2, 1, 2, 9}, {.size = Pair{7, 2}}},
                                  {"factors", {1, 2, 5, 4}, {.scale_factor = Factors{1.5, 2.75}}},
                                  {"to one", {1, 2, 3, 3}, {.size = 1}},
                                  {"from one", {1, 3, 1, 1}, {.size = Pair{3, 2}}},
                                  {"the same size", {1, 2, 3, 3}, {.size = 3}},
                                  {"many channels", {1, 70, 3, 2}, {.scale_factor = 2.0}},
                                  {"no images", {0, 2, 3, 3}, {.scale_factor = 2.0}}};
    std::vector<Case> cases;
    for (const auto& [name, x, given] : sizes) {
      InterpolateOptions o = given;
      cases.push_back(of("nearest, " + name, x, o));
      o.mode = Interpolation::bilinear;
      cases.push_back(of("bilinear, " + name, x, o));
      o.align_corners = true;
      cases.push_back(of("bilinear with aligned corners, " + name, x, o));
    }
    const auto with = [](const Shape& shape, InterpolateOptions o) {
      return [=] { interpolate(ones(shape), o); };
    };
    return {
        .cases = cases,
        .errors = {
            error<UsageError>("[interpolate] neither of size and scale_factor given. Give one of "
                              "them.",
                              with({1, 1, 2, 2}, {})),
            error<UsageError>(
                "[interpolate] both of size and scale_factor given. Give one of them.",
                with({1, 1, 2, 2}, {.size = 2, .scale_factor = 2.0})),
            error<UsageError>("[interpolate] align_corners has no meaning for nearest. Leave it, "
                              "or use bilinear.",
                              with({1, 1, 2, 2}, {.size = 2, .align_corners = true})),
            error<UsageError>("[interpolate] scale_factor is -1. It must be positive.",
                              with({1, 1, 2, 2}, {.scale_factor = Factors{2, -1}})),
            error<ShapeError>("[interpolate] x is [2, 2] f32, of rank 2. It must have rank 4.",
                              with({2, 2}, {.size = 2})),
            error<ShapeError>("[interpolate] the output would be [1, 1, 0, 0] for x [1, 1, 2, 2] "
                              "f32. Both must have elements.",
                              with({1, 1, 2, 2}, {.scale_factor = 0.25})),
            error<ShapeError>("[interpolate] the output would be [1, 1, 2, 2] for x [1, 1, 0, 2] "
                              "f32. Both must have elements.",
                              with({1, 1, 0, 2}, {.size = 2}))}};
  }
};

}  // namespace halftone::test
