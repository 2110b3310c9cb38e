// Second gradients of random computations against PyTorch's double backward, in six modes: f64 and
// f32 on both CPU backends, and autocast to bf16 and f16.
// tests/fixtures/pytorch/second_gradient_fixtures.py has the operations, and the meaning of a case.
#include <halftone/autograd/engine.h>
#include <halftone/autograd/ops.h>

#include "fixture.h"

namespace halftone::test::second_gradients_test_of_pytorch {
namespace {

using Tensors = std::vector<Tensor>;
using OfTwo = std::function<Tensor(const Tensor& a, const Tensor& b)>;

constexpr int64_t side = 4;

OfTwo of_one(Tensor (*f)(const Tensor&)) {
  return [f](const Tensor& a, const Tensor&) { return f(a); };
}
template <class F> OfTwo spread(F f) {
  return [f](const Tensor& a, const Tensor&) { return expand(f(a), {side, side}); };
}
template <class F> OfTwo on_image(F f) {
  return [f](const Tensor& a, const Tensor& b) {
    return reshape(f(reshape(a, {1, 1, side, side}), reshape(b, {1, 1, side, side})), {side, side});
  };
}

Tensor places() { return from({{0, 3, 1, 1}, {2, 3, 0, 1}, {0, 0, 0, 1}, {3, 3, 3, 2}}); }

/// The order is that of OPERATIONS in the script.
std::vector<OfTwo> operations() {
  using T = const Tensor&;
  return {
      [](T a, T b) { return a + b; },
      [](T a, T b) { return a - b; },
      [](T a, T b) { return a * b; },
      [](T a, T b) { return a / (1.0 + b * b); },
      [](T a, T b) { return matmul(a, b); },
      [](T a, T b) { return linear(a, b); },
      [](T a, T b) { return maximum(a, b); },
      [](T a, T b) { return mse(a, b, LossReduction::none); },
      of_one(&tanh),
      of_one(&sigmoid),
      of_one(&gelu),
      of_one(&gelu_erf),
      of_one(&silu),
      [](T a, T) { return softplus(a); },
      [](T a, T) { return elu(a); },
      of_one(&mish),
      of_one(&sin),
      [](T a, T) { return exp(-a * a); },
      [](T a, T) { return sqrt(1.0 + a * a); },
      [](T a, T) { return log1p(a * a); },
      [](T a, T) { return leaky_relu(a, 0.25); },
      [](T a, T) { return softmax(a, -1); },
      [](T a, T) { return log_softmax(a, -1); },
      spread([](T a) { return logsumexp(a, 1, true); }),
      spread([](T a) { return mean(a, {1}, true); }),
      spread([](T a) { return var(a, {0}, 1, true); }),
      spread([](T a) { return norm(a, {1}, true); }),
      [](T a, T) { return cumsum(a, 1); },
      [](T a, T) { return layer_norm(a, {side}, {}, {}, 0.1); },
      [](T a, T) { return rms_norm(a, {side}, {}, 0.1); },
      [](T a, T) { return squeeze(group_norm(unsqueeze(a, 0), 2, {}, {}, 0.1), 0); },
      [](T a, T) { return transpose(a, 0, 1); },
      [](T a, T b) {
        return cat({slice(a, 1, 1, side), slice(b, 1, 0, 1)}, 1);
      },
      on_image([](T a, T b) { return scaled_dot_product_attention(a, b, a); }),
      on_image(
          [](T a, T) { return avg_pool2d(a, {.kernel = 3, .stride = Pair(1), .padding = 1}); }),
      on_image([](T a, T b) {
        return conv2d(a, slice(slice(b, 2, 0, 3), 3, 0, 3), {}, {.padding = Pair(1)});
      }),
      [](T a, T) { return tan(tanh(a)); },
      [](T a, T) { return asin(0.9 * tanh(a)); },
      [](T a, T) { return acos(0.9 * tanh(a)); },
      of_one(&atan),
      [](T a, T) { return sinh(tanh(a)); },
      [](T a, T) { return cosh(tanh(a)); },
      [](T a, T) { return exp2(tanh(a)); },
      [](T a, T) { return erfinv(0.9 * tanh(a)); },
      [](T a, T) { return logit(0.1 + 0.8 * sigmoid(a)); },
      [](T a, T) { return frac(a) * a; },
      [](T a, T b) { return atan2(a, 1.0 + b * b); },
      [](T a, T b) { return logaddexp(a, b); },
      [](T a, T b) { return fmod(a, 1.0 + b * b) * a; },
      [](T a, T b) { return xlogy(1.0 + a * a, 1.0 + b * b); },
      [](T a, T) {
        return a[from({0, -1, 1, 0})] * a;
      },
      [](T a, T b) {
        return index_put(a, {from({2, -4})}, slice(b, 0, 1, 3) * slice(a, 0, 0, 2));
      },
      [](T a, T b) { return scatter_reduce(a, 0, places(), b, ScatterReduction::prod); },
      [](T a, T b) { return scatter_reduce(a, 1, places(), b, ScatterReduction::amax) * a; },
      [](T a, T b) { return scatter_reduce(a, 1, places(), b, ScatterReduction::mean, false) * b; },
      on_image([](T a, T) { return fold(unfold(a, {.kernel = 2}), 4, {.kernel = 2}) * a; })};
}

struct Mode {
  std::string_view backend;
  DType dtype;
  std::optional<DType> autocast{};
};

Tensors second_gradients(const std::vector<OfTwo>& table, const Tensor& program, const Tensors& in,
                         const Tensor& w, const Tensors& v, const Mode& mode) {
  Tensors x;
  for (const Tensor& one : in) x.push_back(cast(one, mode.dtype).set_requires_grad());
  const auto run = [&] {
    Tensors results = x;
    const std::vector<int64_t> rows = program.to_vector<int64_t>();
    for (std::size_t i = 0; i + 2 < rows.size() && rows[i] >= 0; i += 3)
      results.push_back(table[std::size_t(rows[i])](results[std::size_t(rows[i + 1])],
                                                    results[std::size_t(rows[i + 2])]));
    return cast(results.back(), mode.dtype);
  };
  const Tensor y = mode.autocast ? amp::autocast(*mode.autocast, run) : run();
  const Tensor loss = sum(y * cast(w, mode.dtype));
  const Tensors first =
      autograd::grad(std::span(&loss, 1), x, {.allow_unused = true, .create_graph = true});
  Tensor h = zeros({}, mode.dtype);
  for (std::size_t i = 0; i < x.size(); ++i)
    if (first[i].defined()) h = h + sum(first[i] * cast(v[i], mode.dtype));
  Tensors second = autograd::grad(std::span(&h, 1), x, {.allow_unused = true});
  for (std::size_t i = 0; i < x.size(); ++i)
    if (!second[i].defined()) second[i] = zeros_like(x[i]);
  return second;
}

void compare(const std::string& group, int64_t count) {
  const NamedTensors cases = load_cases("second_gradients").at(group);
  const std::vector<OfTwo> table = operations();
  CHECK(cases.at("x").size(0) == count);
  const std::array modes{Mode{"reference", f64}, Mode{"reference", f32}, Mode{"cpu", f64},
                         Mode{"cpu", f32},       Mode{"cpu", f32, bf16}, Mode{"cpu", f32, f16}};
  for (const Mode& mode : modes) {
    const CpuBackendScope scope(mode.backend);
    for (int64_t i = 0; i < count; ++i) {
      INFO("case ", i, ", ", std::string(mode.backend), ", ",
           std::string(name(mode.autocast.value_or(mode.dtype))));
      const auto pair = [&](const char* name) {
        const Tensor both = select(cases.at(name), 0, i);
        return Tensors{select(both, 0, 0), select(both, 0, 1)};
      };
      const Tensors got = second_gradients(table, select(cases.at("program"), 0, i), pair("x"),
                                           select(cases.at("w"), 0, i), pair("v"), mode);
      const Tensors wanted = pair("ddx");
      // A noise of 2^-8 in each result moves the gradients by `noise`.
      const DType coarsest = mode.autocast.value_or(mode.dtype);
      const double noise = select(cases.at("noise"), 0, i).item() * epsilon(coarsest) * 256;
      const double scale = std::max(largest_magnitude(wanted[0]), largest_magnitude(wanted[1]));
      const double allowed =
          (mode.autocast ? 8 : 32) * (noise + epsilon(coarsest) * scale) + 64 * epsilon(mode.dtype);
      for (std::size_t k : {0u, 1u}) CHECK(difference(got[k], wanted[k], allowed) == "");
    }
  }
}

TEST_CASE("second gradients of 500 random computations are PyTorch's, in six modes") {
  compare("cases", 500);
}
TEST_CASE("second gradients of 100 computations with rarer functions, and by several indices") {
  compare("more", 100);
}

}  // namespace
}  // namespace halftone::test::second_gradients_test_of_pytorch
