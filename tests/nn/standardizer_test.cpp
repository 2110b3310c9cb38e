// Columns scaled to mean 0 and deviation 1, and the way back, also through a file.
#include <doctest/doctest.h>

#include <halftone/autograd/ops.h>
#include <halftone/nn/nn.h>

#include "../support.h"

namespace halftone::test::standardizer_test {

using Values = std::vector<double>;
static Values values(const Tensor& x) { return x.to_vector<double>(); }

TEST_CASE("columns are standardized, and converted back") {
  const Tensor x = from({{1.0, 5, 2}, {3, 5, 4}});
  const auto standard = nn::Standardizer::of(x);
  CHECK(values(standard(x)) == Values{-1, 0, -1, 1, 0, 1});
  CHECK(values(standard.undo(standard(x))) == values(x));
  CHECK_THROWS_AS(standard(ones({2, 2})), ShapeError);
  CHECK_THROWS_AS(standard.undo(ones({2, 2})), ShapeError);
  CHECK_THROWS_AS(nn::Standardizer::of(ones({3})), ShapeError);
  CHECK_THROWS_AS(nn::Standardizer::of(empty({0, 3})), ShapeError);
}

TEST_CASE("a constant column becomes 0, for any number") {
  for (const double constant : {0.1, 1e-30, -3e30, 1.0 / 3})
    for (const int64_t rows : {1, 3, 1000}) {
      const Tensor x = full({rows, 1}, constant);
      const auto standard = nn::Standardizer::of(x);
      CHECK(values(standard(x)) == Values(std::size_t(rows), 0));
      CHECK(values(standard.undo(standard(x))) == values(x));
    }
}

TEST_CASE("a model's file holds its means and deviations, which no optimizer trains") {
  struct Model final : nn::Module {
    nn::Standardizer scale{2};
    nn::Linear last{2, 1};
    void describe(nn::Fields& field) override { field("scale", scale), field("last", last); }
  };
  const TemporaryDirectory directory;
  const Tensor x = from({{1.0, 50}, {3, 70}, {5, 60}});
  Model model;
  CHECK(values(model.scale(x)) == values(x));
  model.scale = nn::Standardizer::of(x);
  CHECK(model.parameters().size() == 2);
  nn::save(model, directory / "model.safetensors");
  Model other;
  nn::load(other, directory / "model.safetensors");
  CHECK(values(other.scale(x)) == values(model.scale(x)));
}

}  // namespace halftone::test::standardizer_test
