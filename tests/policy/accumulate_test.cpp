// "accumulate" on a convolution: three products with its windows; and on a linear layer whose
// operands have a scale of the tensor, or scales of blocks.
#include <doctest/doctest.h>

#include <halftone/amp/policy_reader.h>
#include <halftone/amp/training.h>
#include <halftone/autograd/ops.h>
#include <halftone/core/backend.h>
#include <halftone/core/formats/sums.h>
#include <halftone/core/pending.h>
#include <halftone/nn/conv.h>
#include <halftone/nn/layers.h>
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

// One scale for a tensor: a machine adds products of numbers, and multiplies the sum.

/// A tensor as numbers, and 1 / s.
struct Apart {
  Tensor numbers;
  float factor;
};
Apart apart(const Tensor& x, const NumberFormat& grid) {
  const float s = grid.max / max(abs(x)).item<float>();
  return {quantized(x * double(s), {.quantizer = {.grid = grid}}), 1 / s};
}
/// Returns a b.
Tensor product_apart(const Apart& a, const Apart& b, const Accumulator& unit) {
  Tensor sums = empty({a.numbers.size(0), b.numbers.size(1)});
  backend_for(sums).matmul_accumulating(a.numbers, b.numbers, {}, unit, sums);
  return sums * double(a.factor * b.factor);
}
Apart turned(const Apart& x) { return {transpose(x.numbers, 0, 1), x.factor}; }

TEST_CASE("accumulate: a scale of the tensor multiplies the sums of numbers") {
  const Accumulator unit = *accumulator_named("h100-wgmma-f8");
  for (const bool both : {true, false}) {
    CAPTURE(both);
    manual_seed(3);
    nn::Sequential model(nn::Linear(100, 21));
    auto& linear = static_cast<nn::Linear&>(model[0]);
    optim::Sgd sgd(model.parameters(), {.lr = 0});
    amp::Training training(
        policy::read_text(R"({"halftone_policy": 1, "name": "t", "extends": "fp32", "quantizers":
            {"e4m3": {"format": "e4m3", "scale": {"per": "tensor", "from": "current"}},
             "e5m2": {"like": "e4m3", "format": "e5m2"}}, "rules": [{"match": {"op": "linear"},
             "accumulate": "h100-wgmma-f8", "input": "e4m3", "grad_output": "e5m2")" +
                          std::string(both ? R"(, "weight": "e4m3")" : "") + "}]}"),
        model, sgd);
    const Tensor x = randn({70, 100}).set_requires_grad();
    const Tensor y = training.forward(model, x), dy = randn(y.shape());
    training.backward((y * dy).sum());
    const NoGrad no_grad;
    const Tensor weight = linear.weight.detach();
    const Apart in = apart(x.detach(), formats::e4m3), out = apart(dy, formats::e5m2),
                w = both ? apart(weight, formats::e4m3) : Apart{weight, 1};
    CHECK(floats(y) == floats(product_apart(in, turned(w), unit) + linear.bias));
    CHECK(floats(x.grad()) == floats(product_apart(out, w, unit)));
    CHECK(floats(linear.weight.grad()) == floats(product_apart(turned(out), in, unit)));
    // Sums of scaled values are others.
    const Tensor values = product_apart({in.numbers * double(in.factor), 1},
                                        turned({w.numbers * double(w.factor), 1}), unit);
    CHECK(floats(y) != floats(values + linear.bias));
  }
}

// Operands with scales: the three products of a linear layer, from numbers and scales by loops.

/// Returns a b^T, of rows of numbers with scales: each step of 64 products adds exactly and cuts to
/// f32, which is what the unit does where all scales are near each other.
std::vector<float> product_of(const F8Operand& a, const F8Operand& b) {
  const int64_t k = a.numbers.size(1), rows = a.numbers.size(0), columns = b.numbers.size(0);
  const auto values = [&](const F8Operand& x) {
    F8Operand scaled = x;
    scaled.whole = ones({});
    return floats(waiting_operand(scaled, f32));
  };
  const std::vector<float> left = values(a), right = values(b);
  const float whole = a.whole.item<float>() * b.whole.item<float>();
  std::vector<float> c;
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) {
      float sum = 0;
      for (int64_t first = 0; first < k; first += 64) {
        double step = sum;
        for (int64_t p = first; p < std::min(k, first + 64); ++p)
          step += double(left[std::size_t(i * k + p)]) * double(right[std::size_t(j * k + p)]);
        sum = sums::cut_to_float(step);
      }
      c.push_back(sum * whole);
    }
  return c;
}

TEST_CASE("accumulate: a linear layer whose products read numbers and scales of blocks") {
  for (const std::string name : {"mxf4", "nvf4"}) {
    CAPTURE(name);
    const std::string format = name == "mxf4" ? "mxfp4" : "nvfp4";
    const Quantizer quantizer = *quantizer_named(format);
    const auto text = [&](const std::string& input, const std::string& more) {
      return R"({"halftone_policy": 1, "name": "t", "extends": "fp32", "quantizers":
        {"turned": {"like": ")" +
             format + R"(", "hadamard": 16}}, "rules": [{"match":
        {"op": "linear"}, "accumulate": "b200-tcgen05-)" +
             name + R"(", "input": ")" + input + R"(", "weight": ")" + format +
             R"(", "grad_output": ")" + format + '"' + more + "}]}";
    };
    const std::string weight_backward = R"(, "weight.backward": ")" + format + '"',
                      for_backward = weight_backward + R"(, "input.backward": "turned",
                        "grad_output.weight": "turned")";
    manual_seed(3);
    nn::Sequential model(nn::Linear(100, 21));
    auto& linear = static_cast<nn::Linear&>(model[0]);
    optim::Sgd sgd(model.parameters(), {.lr = 0});
    amp::Training training(policy::read_text(text(format, for_backward)), model, sgd);
    const Tensor x = randn({70, 100}).set_requires_grad();
    const Tensor y = training.forward(model, x), dy = randn(y.shape());
    training.backward((y * dy).sum());
    const NoGrad no_grad;
    Quantizer rotated = quantizer;
    rotated.hadamard = 16, rotated.hadamard_signs = policy::rotation_signs;
    const auto apart = [&](const Tensor& t) { return quantized_f8(t, {.quantizer = quantizer}); };
    const auto turned_apart = [&](const Tensor& t) {
      return quantized_f8(t, {.quantizer = rotated});
    };
    const auto turned = [](const Tensor& t) { return transpose(t, 0, 1); };
    const Tensor w = linear.weight.detach();
    const Tensor wanted =
        from_vector(product_of(apart(x.detach()), apart(w)), {70, 21}) + linear.bias;
    CHECK(floats(y) == floats(wanted));
    CHECK(floats(x.grad()) == product_of(apart(dy), apart(turned(w))));
    CHECK(floats(linear.weight.grad()) ==
          product_of(turned_apart(turned(dy)), turned_apart(turned(x.detach()))));

    const auto refusal = [&](const std::string& rules) {
      return test::message_of<UsageError>([&] {
        nn::Sequential other(nn::Linear(100, 21));
        optim::Sgd none(other.parameters(), {.lr = 0});
        amp::Training refused(policy::read_text(rules), other, none);
        refused.forward(other, x);
      });
    };
    CHECK(refusal(text("turned", for_backward)) ==
          "[policy t] 0/linear.0: \"input\" is " + described(rotated) + ", and \"weight\" is " +
              described(quantizer) + ". Rotate both operands of a product alike, or none.");
    CHECK(refusal(text(format, "")) ==
          "[policy t] 0/linear.0: \"weight.backward\" is as used, " + described(quantizer) +
              ", and the scales of backward run along another dimension. Give it a quantizer of "
              "its own.");
    CHECK(refusal(text("mxfp8", for_backward)) ==
          "[policy t] 0/linear.0: \"b200-tcgen05-" + name +
              "\" reads numbers and their scales, and \"input\" is " +
              described(*quantizer_named("mxfp8")) + ". Use e2m1 with " +
              (name == "mxf4" ? "e8m0 scales of blocks of 32." : "e4m3 scales of blocks of 16."));
  }
}

TEST_CASE("accumulate: operands without scales, and other operations than linear") {
  CHECK(message_of<UsageError>([] { pass({}, R"("b200-tcgen05-nvf4")"); }) ==
        "[policy t] 0/conv2d.0: conv2d has no products in \"b200-tcgen05-nvf4\"; linear does. Name "
        "it in \"match\".");
  const Accumulator unit = *accumulator_named("b200-tcgen05-mxf4");
  CHECK(message_of<UsageError>([&] {
          Matmul::product(randn({4, 32}), randn({32, 3}), f32, unit);
        }) ==
        "[matmul] this accumulator reads numbers and their scales, one for 32 numbers, and an "
        "operand has none: [4, 32] f32 and [32, 3] f32. Quantize both operands in such blocks.");
  const auto operand = [](const Shape& shape) {
    return waiting_operand(quantized_f8(randn(shape), {.quantizer = *quantizer_named("mxfp4")}),
                           f32);
  };
  CHECK(message_of<UsageError>([&] {
          Matmul::product(operand({32, 32}), operand({32, 32}), f32, unit);
        }) ==
        "[matmul] the scales of [32, 32] f8_e4m3 belong to rows of another dimension than the "
        "sum's. Quantize the operand for this product.");
}

}  // namespace
}  // namespace halftone::test::accumulate_test
