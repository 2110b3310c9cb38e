// Recurrent layers: names, shapes, first values, states, precision under autocast, and every error
// message. Their numbers are compared with PyTorch's in tests/pytorch/recurrent_test.cpp.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include <halftone/amp/amp.h>
#include <halftone/nn/nn.h>

namespace halftone::test::rnn_test {
namespace {

std::vector<std::string> names_of(const nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& entry : module.named_parameters()) names.push_back(entry.first);
  return names;
}
using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("recurrent layers have PyTorch's names, shapes and first values") {
  CHECK(names_of(nn::Lstm(3, 4)) ==
        Names{"weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"});
  CHECK(names_of(nn::Gru(3, 4, {.layers = 2, .bias = false, .bidirectional = true})) ==
        Names{"weight_ih_l0", "weight_hh_l0", "weight_ih_l0_reverse", "weight_hh_l0_reverse",
              "weight_ih_l1", "weight_hh_l1", "weight_ih_l1_reverse", "weight_hh_l1_reverse"});
  const nn::Lstm lstm(3, 64, {.layers = 2, .bidirectional = true});
  CHECK(lstm.directions[1].weight_ih.shape() == Shape{256, 3});
  CHECK(lstm.directions[2].weight_ih.shape() == Shape{256, 128});
  CHECK(lstm.directions[3].weight_hh.shape() == Shape{256, 64});
  CHECK(nn::Gru(3, 4).directions[0].bias_hh.shape() == Shape{12});
  const std::vector<double> values = lstm.directions[3].weight_hh.to_vector<double>();
  const auto [low, high] = std::ranges::minmax(values);
  CHECK(high <= 0.125);  // 1 / sqrt(64)
  CHECK(high > 0.12);
  CHECK(low < -0.12);
}

TEST_CASE("recurrent layers: shapes of outputs and states") {
  const nn::LstmOutput result =
      nn::Lstm(3, 4, {.layers = 2, .batch_first = true, .bidirectional = true})(rand({5, 7, 3}));
  CHECK(result.y.shape() == Shape{5, 7, 8});
  CHECK(result.h.shape() == Shape{4, 5, 4});
  CHECK(result.c.shape() == Shape{4, 5, 4});
  const nn::Gru gru(3, 4);
  const Tensor x = rand({7, 5, 3});
  const nn::GruOutput whole = gru(x);
  CHECK(whole.y.shape() == Shape{7, 5, 4});
  // A sequence in two parts, with the state passed on, equals the whole sequence.
  const nn::GruOutput first = gru(slice(x, 0, 0, 3));
  const nn::GruOutput rest = gru(slice(x, 0, 3, 7), first.h);
  CHECK(rest.h.to_vector<double>() == whole.h.to_vector<double>());
}

TEST_CASE("dropout is between the layers, in training") {
  manual_seed(1);
  nn::Lstm layer(3, 4, {.layers = 2, .dropout = 0.5});
  const Tensor x = rand({4, 2, 3});
  const auto output = [&] { return layer(x).y.to_vector<double>(); };
  CHECK(output() != output());
  layer.eval();
  CHECK(output() == output());
  nn::Lstm single(3, 4, {.dropout = 0.5});
  CHECK(single(x).y.to_vector<double>() == single(x).y.to_vector<double>());
}

TEST_CASE("under autocast recurrent layers run in low precision, their gradients arrive in f32") {
  nn::Lstm lstm(3, 4, {.layers = 2});
  nn::Gru gru(3, 4);
  const Tensor x = rand({3, 2, 3});
  const Tensor loss = amp::autocast(bf16, [&] {
    const nn::LstmOutput result = lstm(x);
    CHECK(result.y.dtype() == bf16);
    CHECK(result.c.dtype() == bf16);
    const nn::GruOutput other = gru(x);
    CHECK(other.y.dtype() == bf16);
    return sum(result.y) + sum(result.c) + sum(other.h);
  });
  loss.backward();
  for (const Tensor& p : lstm.parameters()) CHECK(p.grad().dtype() == f32);
  for (const Tensor& p : gru.parameters()) CHECK(p.grad().dtype() == f32);
  // PyTorch's CPU lists contain only the LSTM.
  amp::autocast(amp::CastPolicy::preset("pytorch-cpu").with(bf16), [&] {
    CHECK(lstm(x).y.dtype() == bf16);
    CHECK(gru(x).y.dtype() == f32);
  });
  for (const std::string_view preset : amp::CastPolicy::preset_names())
    amp::autocast(amp::CastPolicy::preset(preset).with(bf16), [&] { lstm(x), gru(x); });
}

TEST_CASE("a batch of 0: shapes as always, gradients of 0") {
  const nn::Lstm lstm(3, 4, {.layers = 2, .batch_first = true, .bidirectional = true});
  const nn::Gru gru(3, 4);
  const auto [y, h, c] = lstm(rand({0, 5, 3}));
  CHECK(y.shape() == Shape{0, 5, 8});
  CHECK(h.shape() == Shape{4, 0, 4});
  CHECK(c.shape() == Shape{4, 0, 4});
  const auto of_gru = gru(rand({5, 0, 3}));
  CHECK(of_gru.y.shape() == Shape{5, 0, 4});
  CHECK(of_gru.h.shape() == Shape{1, 0, 4});
  (sum(y) + sum(h) + sum(c) + sum(of_gru.y) + sum(of_gru.h)).backward();
  for (const nn::Module* module :
       {static_cast<const nn::Module*>(&lstm), static_cast<const nn::Module*>(&gru)})
    for (const auto& [name, x] : const_cast<nn::Module*>(module)->named_parameters()) {
      CAPTURE(name);
      for (const double g : x.grad().to_vector<double>()) CHECK(g == 0);
    }
}

TEST_CASE("recurrent layers refuse inputs that do not fit") {
  CHECK_THROWS_WITH_AS(nn::Lstm(0, 4), "[Lstm] the input size is 0. Use 1 or more.", UsageError);
  CHECK_THROWS_WITH_AS(nn::Gru(4, 0), "[Gru] the hidden size is 0. Use 1 or more.", UsageError);
  CHECK_THROWS_WITH_AS(nn::Gru(4, 4, {.layers = 0}), "[Gru] layers is 0. Use 1 or more.",
                       UsageError);
  CHECK_THROWS_WITH_AS(nn::Lstm(4, 4, {.dropout = 2}),
                       "[Lstm] dropout 2 is not between 0 and 1. Choose one that is.", UsageError);
  CHECK_THROWS_WITH_AS(nn::Lstm(3, 4)(rand({5, 2})),
                       "[Lstm] needs [time, n, 3], got [5, 2] f32. Reshape it, or see batch_first.",
                       ShapeError);
  CHECK_THROWS_WITH_AS(
      nn::Gru(3, 4, {.batch_first = true})(rand({5, 2, 4})),
      "[Gru] needs [n, time, 3], got [5, 2, 4] f32. Reshape it, or see batch_first.", ShapeError);
  CHECK_THROWS_WITH_AS(nn::Gru(3, 4)(Tensor{}), "[Gru] x is undefined. Pass a tensor.", UsageError);
  CHECK_THROWS_WITH_AS(nn::Lstm(3, 4)(rand({5, 2, 3}), zeros({2, 2, 4})),
                       "[Lstm] h0 is [2, 2, 4] f32. It must be [1, 2, 4].", ShapeError);
  CHECK_THROWS_WITH_AS(nn::Lstm(3, 4)(rand({5, 2, 3}), {}, zeros({1, 2, 3})),
                       "[Lstm] c0 is [1, 2, 3] f32. It must be [1, 2, 4].", ShapeError);
}

}  // namespace halftone::test::rnn_test
