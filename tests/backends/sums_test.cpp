// Pooling, casts by copy and sums of columns on the CPU backend, compared with the reference for
// floats of all sizes: images whose channels fill vectors or do not, and windows that overlap,
// touch or are apart.
#include <cmath>
#include <limits>
#include <string>

#include <doctest/doctest.h>

#include <halftone/autograd/ops.h>
#include <halftone/core/backend.h>
#include <halftone/core/factory.h>
#include <halftone/core/tensor.h>

namespace halftone::test::pools_and_columns_test {
namespace {

using Values = std::vector<double>;

struct Windows {
  PoolGeometry geometry;
  Shape in;
  Shape out() const {
    Shape y = in;
    for (int d : {0, 1}) {
      const auto a = std::size_t(d);
      y[2 + d] =
          (in[2 + d] + 2 * geometry.padding[a] - geometry.kernel[a]) / geometry.stride[a] + 1;
    }
    return y;
  }
};

std::vector<Windows> windows() {
  std::vector<Windows> all;
  for (const int64_t channels : {1, 3, 16, 32, 37, 64, 130})
    for (const PoolGeometry& g :
         {PoolGeometry{}, PoolGeometry{{3, 3}, {2, 2}, {1, 1}, true},
          PoolGeometry{{3, 2}, {2, 3}, {1, 0}, false}, PoolGeometry{{2, 2}, {3, 3}, {0, 0}, true},
          PoolGeometry{{5, 4}, {1, 1}, {2, 2}, false}})
      all.push_back({g, {2, channels, 9, 8}});
  return all;
}

Tensor images(const Shape& s, DType dtype, uint64_t seed) {
  manual_seed(seed);
  // Few different values, so that windows have equal maxima; both zeros among them.
  Tensor x = cast(randint(-8, 8, {s[0], s[2], s[3], s[1]}), f32) * 0.25;
  return cast(x * (rand(x.shape()) - 0.5), dtype).view_as(s, channels_last_strides(s), 0);
}
Tensor like_images(const Shape& s, DType dtype) {
  return full({numel_of(s)}, 7, dtype).view_as(s, channels_last_strides(s), 0);
}

/// Returns the first difference beyond `spacing`, of 1 or relatively; equal NaN and infinities are
/// not differences.
std::string difference(const Tensor& got, const Tensor& wanted, double spacing) {
  const Values a = got.to_vector<double>(), b = wanted.to_vector<double>();
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    if (!(std::abs(a[i] - b[i]) <= spacing * std::max(1.0, std::abs(b[i]))))
      return "element " + std::to_string(i) + ": " + std::to_string(a[i]) + " instead of " +
             std::to_string(b[i]);
  }
  return {};
}

template <class Work> auto on(std::string_view backend, const Work& work) {
  const CpuBackendScope scope(backend);
  return work(backend_for(Device::cpu()));
}

std::string described(const Windows& w, DType dtype) {
  return std::string(name(dtype)) + ", " + std::to_string(w.in[1]) + " channels, kernel " +
         std::to_string(w.geometry.kernel[0]) + ", stride " + std::to_string(w.geometry.stride[0]);
}

TEST_CASE("maxima and their positions are the reference's") {
  for (const DType dtype : {f32, bf16, f16})
    for (const Windows& w : windows())
      for (const double special : {0.0, std::nan(""), -std::numeric_limits<double>::infinity()}) {
        INFO(described(w, dtype), " with ", special);
        const auto run = [&](Backend& b) {
          Tensor x = images(w.in, dtype, 60);
          Tensor some = x.view_as({w.in[1] * 4 / 3 + 1}, {3}, w.in[1]);
          if (special != 0) b.fill(special, some);
          Tensor y = like_images(w.out(), dtype), argmax = like_images(w.out(), u8);
          b.max_pool(x, w.geometry, y, argmax);
          return std::pair(y, argmax);
        };
        const auto got = on("cpu", run), wanted = on("reference", run);
        CHECK(difference(got.first, wanted.first, 0) == "");
        CHECK(got.second.to_vector<int>() == wanted.second.to_vector<int>());
      }
}

TEST_CASE("gradients of maxima are the reference's") {
  for (const DType dtype : {f32, bf16, f16})
    for (const Windows& w : windows()) {
      INFO(described(w, dtype));
      const auto run = [&](Backend& b) {
        const Tensor x = images(w.in, dtype, 61), dy = images(w.out(), dtype, 62);
        Tensor y = like_images(w.out(), dtype), argmax = like_images(w.out(), u8);
        b.max_pool(x, w.geometry, y, argmax);
        Tensor dx = like_images(w.in, dtype);
        b.max_pool_backward(dy, argmax, w.geometry, dx);
        return dx;
      };
      CHECK(difference(on("cpu", run), on("reference", run), 4 * epsilon(dtype)) == "");
    }
}

TEST_CASE("averages and their gradients are the reference's") {
  for (const DType dtype : {f32, bf16, f16})
    for (const Windows& w : windows()) {
      INFO(described(w, dtype));
      const auto forward = [&](Backend& b) {
        Tensor y = like_images(w.out(), dtype);
        b.avg_pool(images(w.in, dtype, 63), w.geometry, y);
        return y;
      };
      CHECK(difference(on("cpu", forward), on("reference", forward), epsilon(dtype)) == "");
      const auto backward = [&](Backend& b) {
        Tensor dx = like_images(w.in, dtype);
        b.avg_pool_backward(images(w.out(), dtype, 64), w.geometry, dx);
        return dx;
      };
      CHECK(difference(on("cpu", backward), on("reference", backward), 4 * epsilon(dtype)) == "");
    }
}

TEST_CASE("adaptive averages and their gradients are the reference's") {
  for (const DType dtype : {f32, bf16, f16})
    for (const int64_t side : {1, 3, 7, 12}) {
      INFO(std::string(name(dtype)), " to ", side);
      const Shape in{2, 37, 9, 8}, out{2, 37, side, side + 1};
      const auto forward = [&](Backend& b) {
        Tensor y = like_images(out, dtype);
        b.adaptive_avg_pool(images(in, dtype, 65), y);
        return y;
      };
      CHECK(difference(on("cpu", forward), on("reference", forward), epsilon(dtype)) == "");
      const auto backward = [&](Backend& b) {
        Tensor dx = like_images(in, dtype);
        b.adaptive_avg_pool_backward(images(out, dtype, 66), dx);
        return dx;
      };
      CHECK(difference(on("cpu", backward), on("reference", backward), 8 * epsilon(dtype)) == "");
    }
}

TEST_CASE("adaptive averages of no images") {
  for (const char* backend : {"cpu", "reference"}) {
    const CpuBackendScope scope(backend);
    Tensor x = ones({0, 3, 4, 4}).set_requires_grad();
    const Tensor y = adaptive_avg_pool2d(x, 2);
    CHECK(y.shape() == Shape{0, 3, 2, 2});
    sum(y).backward();
    CHECK(x.grad().shape() == x.shape());
  }
}

TEST_CASE("copies between floats of equal layouts are the reference's, bit for bit") {
  for (const DType from : {f32, bf16, f16})
    for (const DType to : {f32, bf16, f16})
      for (const int64_t n : {1, 7, 1000, 100003}) {
        INFO(std::string(name(from)), " to ", std::string(name(to)), ", ", n, " elements");
        manual_seed(67);
        const Tensor x = cast(randn({n}) * 1000.0, from);
        const auto run = [&](Backend& b) {
          Tensor y = zeros({n}, to);
          b.copy(x, y);
          return y;
        };
        CHECK(difference(on("cpu", run), on("reference", run), 0) == "");
      }
}

TEST_CASE("copies between layouts are the reference's, bit for bit") {
  struct Layout {
    Shape x;
    Dims order;
  };
  const std::vector<Layout> layouts{{{64, 17, 3, 3}, {0, 2, 3, 1}}, {{64, 3, 3, 17}, {0, 3, 1, 2}},
                                    {{5, 70, 1, 7}, {0, 2, 3, 1}},  {{3, 40, 2, 31}, {2, 3, 0, 1}},
                                    {{33, 1, 65}, {2, 0, 1}},       {{2, 9, 9, 130}, {3, 1, 2, 0}},
                                    {{1000, 37}, {1, 0}},           {{2, 3, 2}, {2, 1, 0}}};
  for (const DType from : {f32, bf16, f16})
    for (const DType to : {f32, bf16, f16})
      for (const Layout& layout : layouts) {
        INFO(std::string(name(from)), " to ", std::string(name(to)), ", ", layout.x);
        manual_seed(68);
        const Tensor x = views::permute(cast(randn(layout.x) * 1000.0, from), layout.order);
        const auto run = [&](Backend& b) {
          Tensor y = zeros(x.shape(), to);
          b.copy(x, y);
          return y;
        };
        CHECK(difference(on("cpu", run), on("reference", run), 0) == "");
      }
}

TEST_CASE("sums of columns are the reference's") {
  for (const DType dtype : {f32, bf16, f16})
    for (const Shape& shape : {Shape{1, 1}, Shape{7, 3}, Shape{512, 1030}, Shape{513, 256},
                               Shape{3000, 32}, Shape{1500, 37}, Shape{2, 70001}})
      for (const Reduction kind : {Reduction::sum, Reduction::mean}) {
        INFO(std::string(name(dtype)), " ", shape[0], " x ", shape[1]);
        manual_seed(68);
        const Tensor x = cast(rand(shape) - 0.25, dtype);
        const auto run = [&](Backend& b) {
          Tensor y = zeros({1, shape[1]}, f32);
          b.reduce(kind, x, y);
          return y;
        };
        CHECK(difference(on("cpu", run), on("reference", run), 0x1p-17) == "");
      }
}

}  // namespace

}  // namespace halftone::test::pools_and_columns_test
