// Volumes: convolutions, pools and batch norm against plain loops in f64, for random geometries;
// gradients against difference quotients of a weighted sum.
#include <array>
#include <functional>

#include <doctest/doctest.h>

#include <halftone/halftone.h>

#include "../support.h"
#include "ops/samples_case.h"

namespace halftone::test::volumes_test {
namespace {

/// One axis of a window: places in the input of output `o`, -1 for padding.
struct Axis {
  int64_t in, kernel, stride, padding, dilation;
  bool ceil_mode = false;
  int64_t out() const {
    const int64_t rest = in + 2 * padding - dilation * (kernel - 1) - 1;
    int64_t n = rest / stride + 1;
    if (ceil_mode && rest % stride != 0 && n * stride < in + padding) ++n;
    return n;
  }
  int64_t place(int64_t o, int64_t k) const {
    const int64_t at = o * stride - padding + k * dilation;
    return at < 0 || at >= in ? -1 : at;
  }
  /// How many places of window `o` are in the padded input.
  int64_t within_padding(int64_t o) const {
    const int64_t begin = o * stride - padding;
    return std::min(begin + kernel, in + padding) - begin;
  }
};

struct Geometry {
  int64_t n, c, out, groups;
  std::array<Axis, 3> axes;
  Shape input() const { return {n, c, axes[0].in, axes[1].in, axes[2].in}; }
  Shape weight() const { return {out, c / groups, axes[0].kernel, axes[1].kernel, axes[2].kernel}; }
};

Geometry drawn(Draw& draw, bool pool) {
  const auto from = [&](int64_t low, int64_t high) {
    return low + int64_t(draw.word() % uint64_t(high - low + 1));
  };
  Geometry g{.n = from(1, 2), .c = 0, .out = 0, .groups = pool ? 1 : from(1, 2), .axes = {}};
  g.c = g.groups * from(1, 3), g.out = g.groups * from(1, 2);
  for (Axis& a : g.axes) {
    a.kernel = from(1, 3), a.stride = from(1, 3), a.dilation = pool ? 1 : from(1, 2);
    a.padding = from(0, pool ? a.kernel / 2 : 2);
    a.in = from(std::max<int64_t>(1, a.dilation * (a.kernel - 1) + 1 - 2 * a.padding), 6);
  }
  if (pool) {
    const bool ceil_mode = from(0, 1) == 1;
    for (Axis& a : g.axes) a.ceil_mode = ceil_mode;
  }
  return g;
}

/// Calls body(output place, window place, input place or -1s) for windows of one sample and
/// channel.
void each_place(const Geometry& g,
                const std::function<void(const Dims&, const Dims&, const Dims&)>& body) {
  const auto& [d, h, w] = g.axes;
  each_index({d.out(), h.out(), w.out()}, [&](const Dims& o) {
    each_index({d.kernel, h.kernel, w.kernel}, [&](const Dims& k) {
      body(o, k, {d.place(o[0], k[0]), h.place(o[1], k[1]), w.place(o[2], k[2])});
    });
  });
}
bool is_inside(const Dims& i) { return i[0] >= 0 && i[1] >= 0 && i[2] >= 0; }

Array array_from(const Tensor& x) { return {x.shape(), contiguous(x).to_vector<double>()}; }

void check_equal(const Tensor& got, const Array& expected) {
  REQUIRE(got.shape() == expected.shape);
  const Values values = contiguous(got.detach()).to_vector<double>();
  for (std::size_t i = 0; i < values.size(); ++i)
    CHECK(values[i] == doctest::Approx(expected.values[i]).epsilon(1e-12));
}

TEST_CASE("conv3d equals loops, with gradients, for random geometries") {
  Draw draw(3);
  for (int round = 0; round < 60; ++round) {
    const Geometry g = drawn(draw, false);
    CAPTURE(round);
    manual_seed(uint64_t(round));
    Tensor x = randn(g.input(), f64), w = randn(g.weight(), f64), b = randn({g.out}, f64);
    for (Tensor* t : {&x, &w, &b}) t->set_requires_grad(true);
    const auto& [d, h, v] = g.axes;
    const Tensor y = conv3d(x, w, b,
                            {.stride = {d.stride, h.stride, v.stride},
                             .padding = {d.padding, h.padding, v.padding},
                             .dilation = {d.dilation, h.dilation, v.dilation},
                             .groups = g.groups});
    const Array in = array_from(x.detach()), weight = array_from(w.detach());
    Array expected({g.n, g.out, d.out(), h.out(), v.out()});
    const Tensor dy = randn(expected.shape, f64);
    const Array outer = array_from(dy);
    Array dx(in.shape), dw(weight.shape), db({g.out});
    const int64_t per_group = g.c / g.groups;
    for (int64_t n = 0; n < g.n; ++n)
      for (int64_t o = 0; o < g.out; ++o) {
        each_index({d.out(), h.out(), v.out()}, [&](const Dims& p) {
          expected(n, o, p[0], p[1], p[2]) = b.detach().data<double>()[o];
          db(o) += outer(n, o, p[0], p[1], p[2]);
        });
        each_place(g, [&](const Dims& p, const Dims& k, const Dims& i) {
          if (!is_inside(i)) return;
          for (int64_t c = 0; c < per_group; ++c) {
            const int64_t channel = o / (g.out / g.groups) * per_group + c;
            const double along = outer(n, o, p[0], p[1], p[2]);
            expected(n, o, p[0], p[1], p[2]) +=
                in(n, channel, i[0], i[1], i[2]) * weight(o, c, k[0], k[1], k[2]);
            dx(n, channel, i[0], i[1], i[2]) += weight(o, c, k[0], k[1], k[2]) * along;
            dw(o, c, k[0], k[1], k[2]) += in(n, channel, i[0], i[1], i[2]) * along;
          }
        });
      }
    check_equal(y, expected);
    sum(y * dy).backward();
    check_equal(x.grad(), dx), check_equal(w.grad(), dw), check_equal(b.grad(), db);
  }
}

TEST_CASE("pools of volumes equal loops for random geometries") {
  Draw draw(4);
  for (int round = 0; round < 60; ++round) {
    const Geometry g = drawn(draw, true);
    CAPTURE(round);
    manual_seed(uint64_t(round));
    Tensor x = randn(g.input(), f64);
    x.set_requires_grad(true);
    const auto& [d, h, v] = g.axes;
    const bool padded = round % 2 == 0;
    const Pool3dOptions options{.kernel = {d.kernel, h.kernel, v.kernel},
                                .stride = Triple(d.stride, h.stride, v.stride),
                                .padding = {d.padding, h.padding, v.padding},
                                .count_include_pad = padded,
                                .ceil_mode = d.ceil_mode};
    const Array in = array_from(x.detach());
    const Shape result{g.n, g.c, d.out(), h.out(), v.out()};
    Array largest(result, -INFINITY), mean(result);
    for (int64_t n = 0; n < g.n; ++n)
      for (int64_t c = 0; c < g.c; ++c) {
        Array counts({d.out(), h.out(), v.out()});
        each_place(g, [&](const Dims& p, const Dims&, const Dims& i) {
          if (!is_inside(i)) return;
          const double value = in(n, c, i[0], i[1], i[2]);
          double& most = largest(n, c, p[0], p[1], p[2]);
          most = std::max(most, value);
          mean(n, c, p[0], p[1], p[2]) += value;
          counts[p] += 1;
        });
        each_index(counts.shape, [&](const Dims& p) {
          const int64_t all =
              d.within_padding(p[0]) * h.within_padding(p[1]) * v.within_padding(p[2]);
          mean(n, c, p[0], p[1], p[2]) /= padded ? double(all) : counts[p];
        });
      }
    check_equal(max_pool3d(x, options), largest);
    check_equal(avg_pool3d(x, options), mean);
    // Every gradient of a mean pool is a share of its window: they add up to the windows.
    sum(max_pool3d(x, options)).backward();
    CHECK(sum(x.grad()).item() == double(numel_of(result)));
  }
}

TEST_CASE("adaptive pools of volumes: windows that overlap, and unbatched volumes") {
  manual_seed(1);
  const Tensor x = randn({2, 3, 5, 4, 7}, f64);
  const Array in = array_from(x);
  const Triple out(3, 2, 4);
  Array mean({2, 3, 3, 2, 4}), largest({2, 3, 3, 2, 4}, -INFINITY);
  each_index(mean.shape, [&](const Dims& o) {
    double count = 0;
    const std::array<int64_t, 3> sizes{3, 2, 4};
    std::array<std::pair<int64_t, int64_t>, 3> at;
    for (int a = 0; a < 3; ++a) {
      const int64_t size = x.size(2 + a), n = sizes[std::size_t(a)];
      at[std::size_t(a)] = {o[2 + a] * size / n, ((o[2 + a] + 1) * size + n - 1) / n};
    }
    for (int64_t d = at[0].first; d < at[0].second; ++d)
      for (int64_t h = at[1].first; h < at[1].second; ++h)
        for (int64_t w = at[2].first; w < at[2].second; ++w) {
          const double value = in(o[0], o[1], d, h, w);
          mean[o] += value, largest[o] = std::max(largest[o], value), ++count;
        }
    mean[o] /= count;
  });
  check_equal(adaptive_avg_pool3d(x, out), mean);
  check_equal(adaptive_max_pool3d(x, out), largest);
  CHECK(contiguous(adaptive_avg_pool3d(select(x, 0, 1), out)).to_vector<double>() ==
        contiguous(select(adaptive_avg_pool3d(x, out), 0, 1)).to_vector<double>());
}

TEST_CASE("a network of volumes trains under autocast, and its batch norm is that of images") {
  manual_seed(2);
  nn::Conv3d conv(2, 4, 3, {.padding = 1});
  nn::BatchNorm3d norm(4);
  nn::BatchNorm2d of_images(4);
  const Tensor x = randn({2, 2, 4, 5, 6});
  const Tensor y = amp::autocast(bf16, [&] { return conv(x); });
  CHECK(y.dtype() == bf16);
  CHECK(y.shape() == Shape{2, 4, 4, 5, 6});
  const Tensor z = randn({2, 4, 3, 5, 6});
  const Tensor expected = reshape(of_images(reshape(z, {2, 4, 15, 6})), z.shape());
  const std::vector<float> got = contiguous(norm(z).detach()).to_vector<float>(),
                           wanted = contiguous(expected.detach()).to_vector<float>();
  for (std::size_t i = 0; i < got.size(); ++i)
    CHECK(got[i] == doctest::Approx(wanted[i]).epsilon(1e-5));
  CHECK_THROWS_WITH_AS(norm(randn({2, 4, 3})),
                       "[BatchNorm3d] needs [n, channels, depth, height, width], got [2, 4, 3] "
                       "f32. Images take BatchNorm2d.",
                       ShapeError);
  CHECK_THROWS_WITH_AS(conv3d(x, randn({4, 3, 3, 3, 3})),
                       "[conv3d] x is [2, 2, 4, 5, 6] f32, the weight [4, 3, 3, 3, 3] f32, 1 "
                       "groups. The weight must be [out, in / groups, kd, kh, kw].",
                       ShapeError);
  CHECK_THROWS_AS(conv3d(x, randn({4, 2, 9, 3, 3})), ShapeError);
}

}  // namespace
}  // namespace halftone::test::volumes_test
