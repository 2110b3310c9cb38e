// nn::clone: the same values, no shared data; and recurrent cells, which are layers of one step.
#include <doctest/doctest.h>

#include <halftone/nn/models/gpt.h>
#include <halftone/nn/models/models.h>
#include <halftone/nn/nn.h>

#include "../support.h"

namespace halftone::test::clone_test {
namespace {

std::vector<double> values(const Tensor& x) { return x.to_vector<double>(); }

struct Small : nn::Module {
  nn::Linear first, second;
  nn::BatchNorm1d norm;
  explicit Small(int64_t width) : first(width, width), second(width, width), norm(width) {
    second.weight = first.weight;
  }
  void describe(nn::Fields& field) override {
    field("first", first), field("second", second), field("norm", norm);
  }
};

TEST_CASE(
    "a clone has the values, ties, modes and frozen parameters of the original, and its own data") {
  manual_seed(3);
  Small model(4);
  model.norm.eval();
  model.first.bias.set_requires_grad(false);
  model.to(bf16);
  const RandomKey before = default_generator().state();
  Small copy = nn::clone(model, 4);
  CHECK(default_generator().state().offset == before.offset);
  CHECK(copy.first.weight.dtype() == bf16);
  CHECK(copy.first.weight.body() == copy.second.weight.body());
  CHECK(copy.first.weight.body() != model.first.weight.body());
  CHECK(copy.first.weight.storage() != model.first.weight.storage());
  CHECK(values(copy.first.weight) == values(model.first.weight));
  CHECK(values(copy.norm.running_var) == values(model.norm.running_var));
  CHECK(copy.training);
  CHECK_FALSE(copy.norm.training);
  CHECK_FALSE(copy.first.bias.requires_grad());
  CHECK(copy.second.bias.requires_grad());
  CHECK(copy.parameters().size() == model.parameters().size());
}

TEST_CASE("clones of models; a clone of other arguments is refused") {
  nn::models::LeNet lenet;
  nn::models::LeNet copy = nn::clone(lenet);
  CHECK(values(copy.parameters()[0]) == values(lenet.parameters()[0]));
  nn::Linear layer(3, 2), again = nn::clone(layer, 3, 2);
  CHECK(values(again.weight) == values(layer.weight));
  CHECK(message_of<UsageError>([&] { nn::clone(layer, 3, 4); }) ==
        "[clone] \"weight\" is [2, 3] in the original and [4, 3] in the new module. Pass the "
        "arguments "
        "that made the original.");
  CHECK_THROWS_AS(nn::clone(layer, 3, 2, nn::LinearOptions{.bias = false}), UsageError);
}

TEST_CASE("cells are the layers, one step at a time") {
  manual_seed(1);
  const int64_t time = 5, n = 3, in = 4, hidden = 6;
  nn::Lstm lstm(in, hidden);
  nn::LstmCell cell(in, hidden);
  nn::Gru gru(in, hidden);
  nn::GruCell gru_cell(in, hidden);
  const auto take = [](auto& to, const auto& layer) {
    to.weight_ih = layer.directions[0].weight_ih, to.weight_hh = layer.directions[0].weight_hh;
    to.bias_ih = layer.directions[0].bias_ih, to.bias_hh = layer.directions[0].bias_hh;
  };
  take(cell, lstm), take(gru_cell, gru);
  const Tensor x = randn({time, n, in});
  const nn::LstmOutput whole = lstm(x);
  const nn::GruOutput whole_gru = gru(x);
  nn::LstmCellOutput state;
  Tensor gru_state;
  for (int64_t t = 0; t < time; ++t) {
    state = cell(select(x, 0, t), state.h, state.c);
    gru_state = gru_cell(select(x, 0, t), gru_state);
  }
  const auto close = [](const Tensor& a, const Tensor& b) {
    const auto left = values(a), right = values(b);
    REQUIRE(left.size() == right.size());
    for (std::size_t i = 0; i < left.size(); ++i)
      CHECK(left[i] == doctest::Approx(right[i]).epsilon(1e-5));
  };
  close(state.h, select(whole.h, 0, 0)), close(state.c, select(whole.c, 0, 0));
  close(gru_state, select(whole_gru.h, 0, 0));
  close(cell(select(select(x, 0, 0), 0, 1)).h, select(cell(select(x, 0, 0)).h, 0, 1));  // unbatched
  CHECK(cell.parameters().size() == 4);
  CHECK(nn::GruCell(2, 3, {.bias = false}).parameters().size() == 2);
  CHECK_THROWS_AS(cell(randn({n, in + 1})), ShapeError);
  CHECK_THROWS_AS(cell(randn({n, in}), randn({n, hidden + 1})), ShapeError);
  CHECK_THROWS_AS(cell(Tensor{}), UsageError);
}

}  // namespace

}  // namespace halftone::test::clone_test
