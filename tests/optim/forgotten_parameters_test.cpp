// A loop without amp::Training prints the shapes of parameters that describe() leaves out, once,
// and only if an optimizer trains other parameters.
#include <doctest/doctest.h>

#include <iostream>
#include <sstream>

#include <halftone/autograd/ops.h>
#include <halftone/nn/nn.h>
#include <halftone/optim/optimizers.h>

namespace halftone::test::forgotten_parameters_test {
namespace {

struct Forgetful final : nn::Layer {
  nn::Linear known{3, 2}, left_out{2, 5};
  Tensor forward(const Tensor& x) const override { return left_out(known(x)); }
  void describe(nn::Fields& field) override { field("known", known); }
};

/// Returns the text that `call` writes to standard error.
template <class Call> std::string told(Call&& call) {
  std::ostringstream text;
  std::streambuf* const before = std::cerr.rdbuf(text.rdbuf());
  call();
  std::cerr.rdbuf(before);
  return text.str();
}

TEST_CASE("a plain loop is told once of parameters that describe() leaves out") {
  Forgetful model;
  optim::Sgd sgd(model.parameters(), 0.1);
  const auto backward = [&] { sum(model(ones({4, 3}))).backward(); };
  const std::string text = told(backward);
  CHECK(
      text.starts_with("[backward] the loss depends on parameters that no optimizer has and no "
                       "module's describe() names: "));
  CHECK(text.find("[5, 2] f32") != std::string::npos);
  CHECK(text.find("[5] f32") != std::string::npos);
  CHECK(text.ends_with(". Name each in the describe() of its module.\n"));
  CHECK(told(backward).empty());
}

TEST_CASE("nothing is told where nothing is left out, or nothing trains") {
  Forgetful without_optimizer;
  CHECK(told([&] { sum(without_optimizer(ones({4, 3}))).backward(); }).empty());
  Forgetful whole;
  std::vector<Tensor> all = whole.parameters();
  all.push_back(whole.left_out.weight), all.push_back(whole.left_out.bias);
  optim::Sgd sgd(all, 0.1);  // which has them, whatever describe() says
  CHECK(told([&] { sum(whole(ones({4, 3}))).backward(); }).empty());
  Forgetful frozen;
  frozen.left_out.set_requires_grad(false);
  optim::Sgd of_known(frozen.parameters(), 0.1);
  CHECK(told([&] { sum(frozen(ones({4, 3}))).backward(); }).empty());
}

}  // namespace
}  // namespace halftone::test::forgotten_parameters_test
