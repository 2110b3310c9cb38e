// "accumulate" on a convolution: three products with its windows.
#include <doctest/doctest.h>

#include <halftone/amp/training.h>
#include <halftone/autograd/ops.h>
#include <halftone/core/backend.h>
#include <halftone/nn/conv.h>
#include <halftone/optim/optimizers.h>

#include "policy/policy_cases.h"
#include "support.h"

namespace halftone::test::accumulate_test {
namespace {

struct Results {
  std::vector<float> y, dx, dweight, dbias;
};

/// A pass of a convolution under a rule's accumulator; "": none.
Results pass(const nn::Conv2dOptions& options, const std::string& accumulate) {
  manual_seed(3);
  nn::Sequential model(nn::Conv2d(4, 6, 3, options));
  optim::Sgd sgd(model.parameters(), {.lr = 0});
  amp::Training training(
      policy::read_text(R"({"halftone_policy": 1, "name": "t", "extends": "fp32", "rules": [)" +
                        (accumulate.empty() ? "" : R"({"accumulate": )" + accumulate + "}") + "]}"),
      model, sgd);
  const Tensor x = randn({3, 4, 9, 8}).set_requires_grad();
  const Tensor y = training.forward(model, x);
  training.backward((y * randn(y.shape())).sum());
  const auto& conv = static_cast<nn::Conv2d&>(model[0]);
  return {floats(y), floats(x.grad()), floats(conv.weight.grad()), floats(conv.bias.grad())};
}

void check_near(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0, largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    worst = std::max(worst, std::abs(double(a[i]) - double(b[i])));
    largest = std::max(largest, std::abs(double(b[i])));
  }
  CHECK(worst < 200 * 0x1p-24 * largest);
}

TEST_CASE("accumulate: a convolution's products in f32 are those of its own kernels, nearly") {
  const nn::Conv2dOptions all[]{{},
                                {.stride = 2, .padding = 1},
                                {.padding = {2, 1}, .dilation = {1, 2}},
                                {.stride = {1, 3}, .padding = 1, .groups = 2}};
  for (const nn::Conv2dOptions& options : all) {
    CAPTURE(options.groups);
    CAPTURE(options.stride.height);
    const Results plain = pass(options, "");
    for (const char* accumulate : {R"({"format": "f32"})", R"("mi300-mfma")"}) {
      const Results summed = pass(options, accumulate);
      check_near(summed.y, plain.y), check_near(summed.dx, plain.dx);
      check_near(summed.dweight, plain.dweight), check_near(summed.dbias, plain.dbias);
    }
  }
}

TEST_CASE("accumulate: a convolution in a short accumulator is the product with its windows") {
  const Accumulator unit{.grid = formats::bf16};
  nn::Conv2dOptions options;
  options.padding = 1;
  const Results summed = pass(options, R"({"format": "bf16"})"), plain = pass(options, "");
  manual_seed(3);
  const nn::Conv2d conv(4, 6, 3, options);
  const Tensor x = randn({3, 4, 9, 8});
  const NoGrad no_grad;
  const Tensor windows = unfold(x, {.kernel = 3, .padding = 1});  // [3, 36, 72]
  Tensor y = empty({3, 6, 72});
  const Tensor w = reshape(conv.weight, {1, 6, 36}), none;
  backend_for(x).matmul_accumulating(w, windows, none, unit, y);
  const Tensor wanted = y + reshape(conv.bias, {1, 6, 1});
  CHECK(summed.y == floats(reshape(wanted, {3, 6, 9, 8})));
  CHECK(summed.y != plain.y);
}

}  // namespace
}  // namespace halftone::test::accumulate_test
