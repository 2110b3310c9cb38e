// Convolutions of random geometries, forward and backward, compared with the reference: halftone's
// own kernels must compute every geometry that oneDNN declines.
#include <cmath>
#include <random>
#include <sstream>

#include <doctest/doctest.h>

#include <halftone/autograd/ops.h>
#include <halftone/core/backend.h>

#include "../support.h"

namespace halftone::test::conv_geometries_test {
namespace {

struct ConvCase {
  bool transposed = false;
  int64_t n = 1, in = 1, out = 1, groups = 1;
  std::array<int64_t, 2> image{}, kernel{}, stride{}, padding{}, dilation{}, extra{};

  std::string text() const {
    std::ostringstream out_text;
    const auto pair = [&](const char* what, const std::array<int64_t, 2>& v) {
      out_text << ' ' << what << ' ' << v[0] << 'x' << v[1];
    };
    out_text << (transposed ? "transposed" : "plain") << " n " << n << " in " << in << " out "
             << out << " groups " << groups;
    pair("image", image), pair("kernel", kernel), pair("stride", stride), pair("padding", padding),
        pair("dilation", dilation), pair("extra", extra);
    return out_text.str();
  }
};

/// y and the gradients of x, weight and bias.
using Results = std::vector<std::vector<double>>;

Results run(const ConvCase& c, DType dtype, const std::vector<Tensor>& values) {
  std::vector<Tensor> in;
  for (const Tensor& value : values) in.push_back(cast(value, dtype).clone().set_requires_grad());
  const auto pair = [](const std::array<int64_t, 2>& v) { return Pair{v[0], v[1]}; };
  const Tensor y = c.transposed ? conv_transpose2d(in[0], in[1], in[2],
                                                   {.stride = pair(c.stride),
                                                    .padding = pair(c.padding),
                                                    .output_padding = pair(c.extra),
                                                    .dilation = pair(c.dilation),
                                                    .groups = c.groups})
                                : conv2d(in[0], in[1], in[2],
                                         {.stride = pair(c.stride),
                                          .padding = pair(c.padding),
                                          .dilation = pair(c.dilation),
                                          .groups = c.groups});
  std::vector<double> weights(std::size_t(y.numel()));
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = double(i % 13) / 8 - 0.75;
  y.backward(from_vector(weights, y.shape(), dtype));
  return {y.to_vector<double>(), in[0].grad().to_vector<double>(), in[1].grad().to_vector<double>(),
          in[2].grad().to_vector<double>()};
}

/// Returns a geometry with an output, or nothing.
std::optional<ConvCase> drawn(std::mt19937& random) {
  const auto below = [&](int64_t n) { return int64_t(random() % uint64_t(n)); };
  ConvCase c;
  c.transposed = below(2) == 0;
  c.groups = std::array<int64_t, 5>{1, 1, 1, 2, 3}[std::size_t(below(5))];
  c.n = 1 + below(2);
  c.in = c.groups * (1 + below(9)), c.out = c.groups * (1 + below(17));
  if (below(6) == 0) c.groups = c.in = c.out = 1 + below(8);  // depthwise
  for (std::size_t d : {0u, 1u}) {
    c.image[d] = 1 + below(12), c.kernel[d] = 1 + below(4), c.stride[d] = 1 + below(3);
    c.padding[d] = below(4), c.dilation[d] = 1 + below(3);
    if (c.transposed) c.extra[d] = below(std::max(c.stride[d], c.dilation[d]));
    const int64_t span = c.dilation[d] * (c.kernel[d] - 1) + 1;
    const int64_t size = c.transposed
                             ? (c.image[d] - 1) * c.stride[d] - 2 * c.padding[d] + span + c.extra[d]
                             : c.image[d] + 2 * c.padding[d] - span + 1;
    if (size < 1) return std::nullopt;
  }
  return c;
}

Tensor channels_last(const Tensor& w) {
  return permute(contiguous(permute(w, {0, 2, 3, 1})), {0, 3, 1, 2});
}

TEST_CASE("convolutions of any geometry equal the reference, forward and backward") {
  std::mt19937 random(7);
  int compared = 0, beyond_stride = 0;
  while (compared < 240) {
    const std::optional<ConvCase> c = drawn(random);
    if (!c) continue;
    const int64_t first = c->transposed ? c->in : c->out, second = c->transposed ? c->out : c->in;
    manual_seed(uint64_t(compared));
    const std::vector<Tensor> values{randn({c->n, c->in, c->image[0], c->image[1]}),
                                     randn({first, second / c->groups, c->kernel[0], c->kernel[1]}),
                                     randn({c->out})};
    const DType dtype = std::array{f32, bf16, f16, f64}[std::size_t(compared % 4)];
    INFO(c->text(), " ", std::string(name(dtype)));
    // Weights may have either layout in memory; results must not depend on it.
    const std::vector<Tensor> same{values[0], channels_last(values[1]), values[2]};
    const Results fast = run(*c, dtype, values);
    CHECK(run(*c, dtype, same) == fast);
    const CpuBackendScope scope("reference");
    const Results plain = run(*c, dtype, values);
    CHECK(run(*c, dtype, same) == plain);
    for (std::size_t i = 0; i < fast.size(); ++i) {
      REQUIRE(fast[i].size() == plain[i].size());
      double largest = 0;
      for (const double v : plain[i]) largest = std::max(largest, std::abs(v));
      // Sums of n terms in another order, each result rounded once.
      const double terms = double(values[0].numel() + values[1].numel());
      const double bound = (largest + 1) * (epsilon(dtype) + std::sqrt(terms) * epsilon(f32));
      for (std::size_t k = 0; k < fast[i].size(); ++k)
        CHECK(std::abs(fast[i][k] - plain[i][k]) <= bound);
    }
    for (std::size_t d : {0u, 1u}) beyond_stride += c->extra[d] >= c->stride[d];
    ++compared;
  }
  CHECK(beyond_stride > 10);  // geometries that oneDNN calls invalid were among them
}

/// Leaves numbers in memory that the next operations get.
void soil_memory() {
  std::vector<Tensor> soiled;
  for (int64_t n = 16; n <= int64_t(1) << 20; n *= 2)
    for (int i = 0; i < 4; ++i) soiled.push_back(full({n}, 1e30));
}

TEST_CASE("weights of taps that touch no pixel have a gradient of 0") {
  // Images narrower than the stride: oneDNN 2.6 leaves such gradients unwritten in bf16.
  struct Narrow {
    Shape x, w;
    Pair stride, padding;
    int64_t groups = 1;
  };
  for (const DType dtype : {f32, bf16, f16})
    for (const Narrow& c : {Narrow{{1, 16, 1, 1}, {8, 16, 3, 3}, 2, 1},
                            {{2, 5, 2, 2}, {3, 5, 3, 3}, 3, 1},
                            {{1, 4, 1, 1}, {1, 4, 1, 5}, {1, 2}, {0, 4}},
                            {{3, 10, 1, 2}, {2, 5, 2, 5}, {4, 4}, {1, 3}, 2}}) {
      CAPTURE(facts(dtype).name);
      CAPTURE(c.w);
      const Conv2dOptions options{.stride = c.stride, .padding = c.padding, .groups = c.groups};
      const Tensor x = cast(ones(c.x), dtype);
      soil_memory();
      Tensor w = cast(ones(c.w), dtype).clone().set_requires_grad();
      sum(conv2d(x, w, {}, options)).backward();
      const CpuBackendScope scope("reference");
      Tensor same = w.detach().clone().set_requires_grad();
      sum(conv2d(x, same, {}, options)).backward();
      CHECK(w.grad().to_vector<double>() == same.grad().to_vector<double>());
    }
}

TEST_CASE("an output padding as large as the dilation, with stride 1") {
  for (const DType dtype : {f32, bf16, f16}) {
    const Tensor x = cast(randn({1, 2, 4, 4}), dtype), w = cast(randn({2, 3, 3, 3}), dtype);
    CHECK(conv_transpose2d(x, w, {}, {.output_padding = 1, .dilation = 2}).shape() ==
          Shape{1, 3, 9, 9});
  }
}

}  // namespace
}  // namespace halftone::test::conv_geometries_test
