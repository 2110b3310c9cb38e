// With portable bits a sample's results do not depend on the other samples of its batch.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include <halftone/core/device.h>
#include <halftone/halftone.h>

namespace halftone::test::batch_test {
namespace {

using Values = std::vector<double>;

Values values_of(const Tensor& x) { return cast(x, f64).to_vector<double>(); }

/// Checks that the first samples have the same results alone, in twos and threes as in all of
/// `batch`, in f32 and under bf16 autocast.
template <class Model> void check(Model& model, const Tensor& batch) {
  const PortableBitsScope portable(true);
  const NoGrad no_grad;
  model.eval();
  for (const bool in_bf16 : {false, true}) {
    const auto result = [&](const Tensor& x) {
      return in_bf16 ? amp::autocast(bf16, [&] { return model(x); }) : model(x);
    };
    const Tensor all = result(batch);
    for (const int64_t count : {1, 2, 3}) {
      INFO(count, " of ", batch.size(0), in_bf16 ? ", bf16" : ", f32");
      CHECK(values_of(result(slice(batch, 0, 0, count))) == values_of(slice(all, 0, 0, count)));
    }
  }
}

TEST_CASE("portable bits: a sample has the same results in any batch") {
  manual_seed(5);
  SUBCASE("mlp") {
    nn::Sequential model = nn::models::mlp({300, 128, 10});
    check(model, randn({64, 300}));
  }
  SUBCASE("lenet") {
    nn::models::LeNet model;
    check(model, randn({64, 1, 28, 28}));
  }
  SUBCASE("resnet18") {
    nn::models::ResNet model = nn::models::resnet18({.classes = 10});
    check(model, randn({16, 3, 32, 32}));
  }
  SUBCASE("gpt") {
    nn::models::Gpt model({.vocabulary = 60, .context = 40, .layers = 2, .heads = 4, .width = 96});
    check(model, randint(0, 60, {64, 40}));
  }
  SUBCASE("lstm") {
    nn::models::LstmClassifier model(60);
    check(model, randint(1, 60, {64, 20}));
  }
  SUBCASE("unet") {
    nn::models::UNet model;
    check(model, randn({8, 3, 32, 32}));
  }
}

}  // namespace
}  // namespace halftone::test::batch_test
