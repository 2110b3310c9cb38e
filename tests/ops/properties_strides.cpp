// The memory layout of inputs does not matter: every operation gives the same results for permuted,
// stepped, expanded and channels-last views as for contiguous tensors of the same values.
#include "ops/properties.h"

#include <halftone/core/tensor.h>

namespace halftone::test::properties_strides {
namespace {

enum class Layout { reversed, stepped, expanded, channels_last };
constexpr std::array layouts{Layout::reversed, Layout::stepped, Layout::expanded,
                             Layout::channels_last};
constexpr std::array<const char*, 4> layout_names{"reversed", "stepped", "expanded",
                                                  "channels last"};

/// The first of dimension 0, repeated with a stride of 0.
Tensor expanded(const Tensor& x) {
  if (x.rank() == 0 || x.numel() == 0) return x;
  return views::expand(views::slice(x, 0, 0, 1), x.shape());
}

Tensor laid_out(const Tensor& x, Layout layout) {
  if (!x.defined()) return x;
  switch (layout) {
    case Layout::reversed: return reversed(x);
    case Layout::stepped: return stepped(x);
    case Layout::expanded: return expanded(x);
    default: return x.rank() == 4 ? views::channels_last(x) : x;
  }
}

void check_layout(const Case& test, const Tensors& inputs, Layout layout, DType dtype) {
  Tensors strided, contiguous;
  for (const Tensor& x : inputs) {
    strided.push_back(laid_out(x, layout));
    contiguous.push_back(x.defined() ? views::contiguous(strided.back()) : x);
  }
  const Outcome plain = run_case(test, contiguous), other = run_case(test, strided);
  // Repeated values have variance 0: the computed variance is the square of a rounding error.
  double rounding = 0;
  for (const Tensor& x : contiguous)
    if (x.defined()) rounding = std::max(rounding, largest_magnitude(x.to_vector<double>()));
  const auto tolerance = [&](Tolerance t) {
    t = twice(t);
    if (layout == Layout::expanded) t.absolute += rounding * compute_epsilon(dtype);
    return t;
  };
  REQUIRE(other.y.shape() == plain.y.shape());
  CHECK(mismatch(other.y, plain.y.to_vector<double>(), tolerance(forward_tolerance(test, dtype))) ==
        "");
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!plain.gradients[i].defined()) continue;
    INFO("gradient of input ", i);
    REQUIRE(other.gradients[i].defined());
    CHECK(mismatch(other.gradients[i], plain.gradients[i].to_vector<double>(),
                   tolerance(gradient_tolerance(test, dtype, plain.y.numel()))) == "");
  }
}

TEST_CASE("strided inputs equal contiguous ones") {
  constexpr std::array dtypes{f64, f32, bf16};
  each_case(dtypes, [](const OpSamples&, const Case& test, DType dtype) {
    if (!test.any_strides) return;
    const Tensors inputs = inputs_of(test, dtype);
    for (std::size_t l = 0; l < layouts.size(); ++l) {
      INFO("inputs ", std::string(layout_names[l]));
      check_layout(test, inputs, layouts[l], dtype);
    }
  });
}

TEST_CASE("dropout's mask follows memory order, and backward repeats it") {
  for (const Target& target : targets()) {
    const TargetScope scope(target);
    const Tensor x = views::channels_last(ones({2, 3, 4, 5}, f32, test_device())),
                 plain = ones({2, 4, 5, 3}, f32, test_device());
    Tensor leaf = x.detach().set_requires_grad();
    manual_seed(5);
    const Tensor y = dropout(leaf, 0.4);
    manual_seed(5);
    const Tensor same = dropout(plain, 0.4);
    CHECK(permute(y.detach(), {0, 2, 3, 1}).to_vector<float>() == same.to_vector<float>());
    y.backward(ones({2, 3, 4, 5}, f32, test_device()));
    CHECK(leaf.grad().to_vector<float>() == y.to_vector<float>());
  }
}

}  // namespace
}  // namespace halftone::test::properties_strides
